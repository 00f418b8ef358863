"""One of several processes that restore a step, on a mesh of their own, and save it as the next: a JSON of options."""

import json
import sys
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa_runtime import checkpoint

#: Half of what a checkpointer waits for another process.
MOST_SECONDS = 60
#: Shapes that four, two and one devices divide; the middle one is cut by columns where the mesh's axis is `tensor`.
HOST = {
    "params": {
        "w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32),
        "bias": np.random.default_rng(1).standard_normal(8).astype(np.float32),
    },
    "state": {"on": np.asarray([True, False, True, True])},
    "opt": {"adam/mu/w": np.random.default_rng(2).standard_normal((16, 8)), "adam/count": np.int32(9)},
}
HOST["opt"]["adam/mu/w"] = HOST["opt"]["adam/mu/w"].astype(np.float32)


def sharding(axis: str, dimensions: int) -> NamedSharding:
    """Returns rows cut over all devices for `fsdp`, columns for `tensor`; vectors by either; numbers whole."""
    mesh = jax.make_mesh((jax.device_count(),), (axis,), axis_types=(AxisType.Auto,))
    spec = {0: (), 1: (axis,), 2: (axis, None) if axis == "fsdp" else (None, axis)}[dimensions]
    return NamedSharding(mesh, PartitionSpec(*spec))


def placed(axis: str, step: int) -> Any:
    """Returns the arrays on the mesh, those of another step negated where they have a sign."""

    def place(array: np.ndarray) -> jax.Array:
        array = np.asarray(-array if step % 2 and array.dtype == np.float32 else array)
        return jax.make_array_from_callback(array.shape, sharding(axis, array.ndim), lambda index: array[index])

    return jax.tree.map(place, HOST)


def same(arrays: Any) -> None:
    """Asserts that each shard of this process has the bits it was made of."""

    def check(array: jax.Array, host: np.ndarray) -> None:
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == host[shard.index].tobytes()

    jax.tree.map(check, arrays, jax.tree.map(np.asarray, HOST))


def stay_away(keeper: Any, axis: str, processes: int, index: int) -> None:
    """Saves six steps, three of which one of the processes can't begin; the others hear of it, and the next counts."""
    from kanawa.contracts import CheckpointSaveError
    from kanawa_runtime.checkpoint import checkpointer
    from orbax import checkpoint as orbax

    def refuse(*args: Any, **more: Any) -> None:
        raise MemoryError

    copying = (orbax.PyTreeCheckpointHandler, "async_save")
    spoilt = [(processes - 1, checkpointer, "ArrayStore"), (processes - 1, *copying), (0, *copying)]
    for number, (who, where, name) in enumerate(spoilt):
        step, sound = 2 * number + 1, getattr(where, name)
        if who == index:
            setattr(where, name, refuse)
        began = time.monotonic()
        try:
            keeper.save(step, **placed(axis, step), data={"row": step})
            keeper.wait()
        except CheckpointSaveError as error:
            assert "MemoryError" in str(error), error
        else:
            raise AssertionError(step)
        # Orbax's barrier alone would take the checkpointer's whole timeout.
        assert time.monotonic() - began < MOST_SECONDS, (step, time.monotonic() - began)
        setattr(where, name, sound)
        keeper.save(step + 1, **placed(axis, step + 1), data={"row": step + 1})
        keeper.wait()


def main(options: dict[str, Any]) -> None:
    """Makes the steps of `make`, or restores the newest and saves it as the step `save`."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if options["processes"] > 1:
        jax.distributed.initialize(options["address"], options["processes"], options["index"])
    assert jax.device_count() == options["processes"]
    axis = options["axis"]
    keeper = (
        getattr(checkpoint, options["kind"])
        .Config(timeout_seconds=2 * MOST_SECONDS)
        .build(directory=options["directory"])
    )
    for step in options.get("make", ()):
        keeper.save(step, **placed(axis, step), data={"row": step})
    if "stay_away" in options:
        stay_away(keeper, axis, options["processes"], options["index"])
    if "save" in options:
        asked = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype, sharding=sharding(axis, np.ndim(a))), HOST
        )
        restored = keeper.restore(asked)
        same(restored.items)
        keeper.save(options["save"], **restored.items, data=restored.data)
    keeper.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
