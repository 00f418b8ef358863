"""What a gang of real processes saved: restored by any other, bit for bit, and any damage to it found."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from drills import drill_seed
from kanawa.contracts import CheckpointError
from kanawa_runtime import checkpoint
from kanawa_runtime.checkpoint import CheckpointDamagedError
from kanawa_runtime.checkpoint.layout import committed_steps
from ports import free_port
from xla_options import xla_flags

from .checkpoint_trees import ABANDONED
from .gang_worker import HOST

WORKER = Path(__file__).with_name("gang_worker.py")
KINDS = ["OrbaxCheckpointer", "ShardedCheckpointer"]
SEED = drill_seed()
pytestmark = ABANDONED


def gang(directory, kind, processes, axis, **options):
    """Has so many processes of one device each do something together."""
    address = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(1)}
    started = []
    for index in range(processes):
        told = {"directory": str(directory), "kind": kind, "processes": processes, "axis": axis, **options}
        command = [sys.executable, str(WORKER), json.dumps(told | {"address": address, "index": index})]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for worker in started:
        output, _ = worker.communicate(timeout=600)
        assert worker.returncode == 0, output[-4000:]


def read(directory, kind, step=None):
    asked = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), HOST)
    return getattr(checkpoint, kind).Config().build(directory=directory, read_only=True).restore(asked, step=step)


def assert_bits(items, sign=1):
    for array, host in zip(jax.tree.leaves(items), jax.tree.leaves(HOST), strict=True):
        expected = np.asarray(sign * host if host.dtype == np.float32 else host)
        assert np.asarray(array).tobytes() == expected.tobytes()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_to_two_to_one_to_four_of_another_layout(tmp_path, record_drill, kind):
    gang(tmp_path, kind, 4, "fsdp", make=[2])
    layouts = [(2, "fsdp"), (1, "fsdp"), (4, "tensor"), (2, "tensor"), (4, "fsdp")]
    for number, (processes, axis) in enumerate(layouts):
        gang(tmp_path, kind, processes, axis, save=3 + number)
    restored = read(tmp_path, kind)
    assert (restored.step, restored.data, dict(restored.damaged)) == (2 + len(layouts), {"row": 2}, {})
    assert_bits(restored.items)
    record_drill(f"drill: 4 to 2 to 1 to 4 processes, fsdp to tensor and back, by {kind}: 0 bits differ")


def test_a_process_that_can_not_begin_a_save_holds_nobody_up(tmp_path):
    gang(tmp_path, "OrbaxCheckpointer", 2, "fsdp", stay_away=True)
    assert committed_steps(tmp_path) == [2, 4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4", "6"]
    restored = read(tmp_path, "OrbaxCheckpointer")
    assert (restored.step, restored.data) == (6, {"row": 6})
    assert_bits(restored.items)


def harm(rng, files, what):
    """Spoils one of a step's files, or two; returns what it was and what brings it back."""
    path = rng.choice(files)
    before = {path: path.read_bytes()}
    if what == "flip":
        data = bytearray(before[path])
        place = rng.randrange(len(data) * 8)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
    elif what == "cut":
        path.write_bytes(before[path][: rng.randrange(len(before[path]))])
    elif what == "delete":
        path.unlink()
    else:
        alike = [other for other in files if other.stat().st_size == path.stat().st_size and other != path]
        other = rng.choice(alike or [other for other in files if other != path])
        before[other] = other.read_bytes()
        path.write_bytes(before[other])
        other.write_bytes(before[path])
    return f"{what} {[str(each) for each in before]}", before


def outcome(directory, kind):
    """Returns what a reader gets; fails on anything silently wrong."""
    restored = read(directory, kind)
    assert_bits(restored.items, 1 if restored.step == 4 else -1)
    assert restored.data == {"row": restored.step}
    if restored.step == 3:
        assert restored.damaged.get(4) or not (directory / "4" / "COMMIT.json").exists()
    return "exact" if restored.step == 4 else "passed over"


def drill(directory, kind, counts, record_drill):
    gang(directory, kind, 4, "fsdp", make=[3, 4])
    files = sorted(path for path in (directory / "4").rglob("*") if path.is_file() and path.stat().st_size)
    rng = random.Random(SEED)
    for what, count in counts.items():
        seen = []
        for index in range(count):
            said, before = harm(rng, files, what)
            try:
                seen.append(outcome(directory, kind))
            except (CheckpointError, AssertionError) as error:
                error.add_note(f"seed {SEED}, {index}: {said}")
                raise
            finally:
                for path, data in before.items():
                    path.write_bytes(data)
        record_drill(
            f"drill: {count} of {count} ({what}) in what a gang of four saved by {kind}: {seen.count('passed over')} "
            f"passed over with the reason, {seen.count('exact')} of no account, 0 wrong (seed {SEED})"
        )
    assert outcome(directory, kind) == "exact"
    for path in files:
        path.write_bytes(b"")
    with pytest.raises(CheckpointDamagedError):
        read(directory, kind, step=4)


@pytest.mark.parametrize("kind", ["ShardedCheckpointer"])
def test_a_few_harms(tmp_path, record_drill, kind):
    drill(tmp_path, kind, {"flip": 4, "cut": 2, "delete": 2, "swap": 2}, record_drill)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_many_harms(tmp_path, record_drill, kind):
    drill(tmp_path, kind, {"flip": 500, "cut": 100, "delete": 100, "swap": 100}, record_drill)
