"""A checkpoint saved on one mesh is restored on others, and by several processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from kanawa_runtime.checkpoint import OrbaxCheckpointer, ShardedCheckpointer
from ports import free_port
from xla_options import xla_flags

WORKER = Path(__file__).with_name("mesh_worker.py")
HOST = {
    "params": {"w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)},
    "opt": {"adam/mu/w": np.arange(128, dtype=np.float32).reshape(16, 8)},
}


def _shardings(axes: dict[str, int], *spec: Any) -> NamedSharding:
    mesh = jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=jax.devices()[: np.prod(list(axes.values()))],
    )
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.mark.parametrize("kind", [OrbaxCheckpointer, ShardedCheckpointer])
def test_eight_devices_to_four_to_one_and_back_to_another_layout(tmp_path: Path, kind: Any) -> None:
    layouts = [
        _shardings({"fsdp": 8}, "fsdp"),
        _shardings({"fsdp": 4}, "fsdp"),
        _shardings({"fsdp": 1}),
        _shardings({"fsdp": 2, "tp": 4}, "tp", "fsdp"),
    ]
    checkpointer = kind.Config().build(directory=tmp_path)
    arrays = jax.device_put(HOST, layouts[0])
    for step, layout in enumerate(layouts):
        checkpointer.save(step, **arrays)
        asked = jax.tree.map(lambda a, at=layout: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=at), HOST)
        restored = checkpointer.restore(asked, step=step)
        assert restored is not None
        arrays = dict(restored.items)
        for found, host in zip(jax.tree.leaves(arrays), jax.tree.leaves(HOST), strict=True):
            assert found.sharding == layout
            assert np.asarray(found).tobytes() == host.tobytes()


def _start(directory: Path, address: str, index: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(2),
    }
    command = [sys.executable, str(WORKER), str(directory), address, str(index)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, **output)


def test_two_processes_save_and_fall_back_together_and_one_reads(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    for worker in [_start(tmp_path, address, index) for index in range(2)]:
        output, _ = worker.communicate(timeout=500)
        assert worker.returncode == 0, output[-4000:]
    layout = _shardings({"fsdp": 8}, "fsdp")
    asked = {"params": {"w": jax.ShapeDtypeStruct((16, 8), np.float32, sharding=layout)}}
    restored = OrbaxCheckpointer.Config().build(directory=tmp_path, read_only=True).restore(asked)
    assert restored is not None
    assert (restored.step, restored.data) == (2, {"row": 2})
    assert np.asarray(restored.items["params"]["w"]).tobytes() == HOST["params"]["w"].tobytes()
