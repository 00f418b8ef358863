"""One of two processes that save and restore together: directory, address, index."""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa_runtime.checkpoint import OrbaxCheckpointer

HOST = {
    "params": {"w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)},
    "opt": {
        "adam/mu/w": np.arange(128, dtype=np.float32).reshape(16, 8),
        "adam/count": np.int32(9),
    },
}


def _sharding(axes: int) -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("fsdp") if axes else PartitionSpec())


def _placed() -> Any:
    def place(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, _sharding(array.ndim), lambda index: array[index])

    return jax.tree.map(place, HOST)


def _abstract() -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=_sharding(a.ndim)), HOST)


def _check(checkpointer: OrbaxCheckpointer, step: int) -> Any:
    restored = checkpointer.restore(_abstract())
    assert restored is not None
    assert restored.step == step
    assert restored.data == {"row": step}

    def same(found: jax.Array, host: np.ndarray) -> None:
        assert found.sharding == _sharding(host.ndim)
        for shard in found.addressable_shards:
            assert np.asarray(shard.data).tobytes() == host[shard.index].tobytes()

    jax.tree.map(same, restored.items, HOST)
    return restored


def main(directory: Path, address: str, index: int) -> None:
    """Saves three steps, damages the newest, restores; an assertion is an error exit."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, index)
    assert jax.device_count() == 4
    checkpointer = OrbaxCheckpointer.Config(timeout_seconds=300).build(directory=directory, keep_last_n=2)
    for step in (1, 2, 3):
        checkpointer.save(step, **_placed(), data={"row": step})
    checkpointer.close()
    assert checkpointer.steps() == [2, 3]
    _check(checkpointer, 3)
    jax.experimental.multihost_utils.sync_global_devices("checked")
    if index == 0:
        [data] = sorted((directory / "3" / "params").rglob("d/*"), key=lambda p: p.stat().st_size)[-1:]
        data.write_bytes(data.read_bytes()[:-20])
    jax.experimental.multihost_utils.sync_global_devices("damaged")
    assert _check(checkpointer, 2).damaged[3]


if __name__ == "__main__":
    import jax.experimental.multihost_utils

    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
