"""Saving, restoring, keeping and refusing."""

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.contracts import CheckpointError, CheckpointSaveError
from kanawa_runtime.checkpoint import (
    CheckpointNotFoundError,
    CheckpointStructureError,
    OrbaxCheckpointer,
    ShardedCheckpointer,
    agreement,
    array_store,
)
from kanawa_runtime.checkpoint.manifest import COMMIT

from .checkpoint_trees import ABANDONED, abstract, assert_bitwise, make_trees

pytestmark = ABANDONED


def _save(checkpointer: OrbaxCheckpointer, step: int, **more: Any) -> None:
    checkpointer.save(step, **make_trees(step), data={"row": step}, meta={"plugins": {}}, **more)


def test_a_restore_gives_back_every_bit(tmp_path: Path, trees: dict[str, Any]) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    assert checkpointer.restore(abstract(trees)) is None
    assert checkpointer.save(7, **trees, data={"row": 2**60}, meta={"digest": "ab"})
    checkpointer.close()
    restored = OrbaxCheckpointer.Config().build(directory=tmp_path, read_only=True).restore(abstract(trees))
    assert restored is not None
    assert (restored.step, restored.data, restored.meta) == (7, {"row": 2**60}, {"digest": "ab"})
    assert_bitwise(restored.items, trees)


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    original = {"w": jnp.arange(1 << 20, dtype=jnp.float32)}
    expected = {"w": jnp.arange(1 << 20, dtype=jnp.float32)}
    overwrite = jax.jit(lambda w: w * 0 - 1, donate_argnums=0)
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    checkpointer.save(1, params=original, opt={})
    for _ in range(3):
        original["w"] = overwrite(original["w"])
    jax.block_until_ready(original)
    restored = checkpointer.restore(abstract({"params": expected}))
    assert restored is not None
    assert_bitwise(restored.items["params"], expected)


def test_a_commit_is_reported_with_its_blocking_time(tmp_path: Path) -> None:
    events: list[tuple[str, Any]] = []
    checkpointer = OrbaxCheckpointer.Config().build(
        directory=tmp_path, on_event=lambda kind, fields: events.append((kind, dict(fields)))
    )
    _save(checkpointer, 3)
    checkpointer.wait()
    [(kind, fields)] = events
    assert kind == "checkpoint_committed"
    assert fields["step"] == 3
    assert Path(fields["path"]) == tmp_path / "3"
    assert 0 < fields["blocking_seconds"] <= fields["seconds"]
    assert fields["bytes"] >= 48 * 16 * 4


def test_old_steps_go_by_both_rules(tmp_path: Path) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path, keep_last_n=2, keep_every_n_steps=4)
    for step in range(1, 8):
        _save(checkpointer, step)
    checkpointer.close()
    assert checkpointer.steps() == [4, 6, 7]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["4", "6", "7"]


def test_saving_the_restored_step_again_does_nothing_but_an_older_timeline_is_replaced(
    tmp_path: Path,
) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    for step in (1, 2, 3):
        _save(checkpointer, step)
    assert checkpointer.save(3, **make_trees(3)) is False
    checkpointer.restore(abstract(make_trees()), step=2)
    assert checkpointer.save(3, **make_trees(33))
    checkpointer.close()
    restored = checkpointer.restore(abstract(make_trees()), step=3)
    assert restored is not None
    assert_bitwise(restored.items, make_trees(33))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2", "3"]


def test_unfinished_steps_do_not_count_and_are_removed_at_the_next_start(tmp_path: Path) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    _save(checkpointer, 1)
    _save(checkpointer, 2)
    checkpointer.close()
    (tmp_path / "2" / COMMIT).unlink()
    (tmp_path / "2" / "manifest.json").unlink()
    (tmp_path / "9.orbax-checkpoint-tmp-3").mkdir()
    (tmp_path / "notes").mkdir()
    reader = OrbaxCheckpointer.Config().build(directory=tmp_path, read_only=True)
    assert reader.latest() == 1
    assert (tmp_path / "2").exists()
    OrbaxCheckpointer.Config().build(directory=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "notes"]


def test_every_structural_difference_is_listed_in_one_error(tmp_path: Path, trees: dict[str, Any]) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    checkpointer.save(1, **trees)
    asked = abstract(trees)
    del asked["params"]["embed"]
    asked["params"]["extra"] = jax.ShapeDtypeStruct((2,), jnp.float32)
    asked["params"]["stack"]["layers[0]"]["w"] = jax.ShapeDtypeStruct((24, 16), jnp.float32)
    asked["ema"] = {}
    with pytest.raises(CheckpointStructureError) as caught:
        checkpointer.restore(asked)
    assert set(caught.value.problems) == {
        "params: extra is missing in the checkpoint",
        "params: embed.weight is in the checkpoint but was not asked for",
        "params: stack.layers[0].w has shape (16, 24) saved, (24, 16) asked for",
        "params: stack.layers[0].w has dtype bfloat16 saved, float32 asked for",
        "ema: the checkpoint has no such item; it has opt, params, state",
    }
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_one_item_can_be_restored_alone(tmp_path: Path, trees: dict[str, Any]) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    checkpointer.save(1, **trees)
    restored = checkpointer.restore(abstract({"params": trees["params"]}))
    assert restored is not None
    assert_bitwise(restored.items, {"params": trees["params"]})


def test_unsavable_leaves_and_values_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    with pytest.raises(CheckpointStructureError, match=r"params: w is a float"):
        checkpointer.save(1, params={"w": 1.0}, opt={})
    with pytest.raises(CheckpointStructureError, match=r"params: k is a"):
        checkpointer.save(1, params={"k": jax.random.key(0)}, opt={})
    with pytest.raises(CheckpointError, match="must be JSON values"):
        checkpointer.save(1, params={}, opt={}, data={"row": object()})
    assert list(tmp_path.iterdir()) == []


def test_an_explicit_step_must_exist(tmp_path: Path) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    _save(checkpointer, 1)
    checkpointer.wait()
    with pytest.raises(CheckpointNotFoundError, match=r"no committed checkpoint 5; it has \[1\]"):
        checkpointer.restore(abstract(make_trees()), step=5)


# Where nothing at all can be written, orbax's metadata fails too, which it would tell to the next save.
@pytest.mark.parametrize("most_bytes", [100_000, 0])
def test_a_full_disk_costs_one_checkpoint_and_no_older_one(tmp_path: Path, most_bytes: int) -> None:
    events: list[str] = []
    checkpointer = OrbaxCheckpointer.Config().build(
        directory=tmp_path, on_event=lambda kind, fields: events.append(kind)
    )
    _save(checkpointer, 1)
    checkpointer.wait()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = {"w": jax.random.normal(jax.random.key(0), (256, 1024))}
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        with pytest.raises(CheckpointSaveError, match=r"checkpoint 2 .*older checkpoints are intact: \[1\]"):
            checkpointer.save(2, params=big, opt={})
            checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert events == ["checkpoint_committed", "checkpoint_failed"]
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    assert checkpointer.save(2, params=big, opt={})
    checkpointer.close()
    assert checkpointer.steps() == [1, 2]
    restored = checkpointer.restore(abstract(make_trees()), step=1)
    assert restored is not None
    assert_bitwise(restored.items, make_trees(1))


@pytest.mark.parametrize("name", ["2", "params", "meta"])
def test_a_save_whose_folder_cannot_be_made_leaves_no_threads_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They would keep the arrays, and the process from ending."""
    mkdir = os.mkdir

    def refuse(path: Any, *args: Any, **more: Any) -> None:
        if Path(path).name == name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        mkdir(path, *args, **more)

    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    _save(checkpointer, 1)
    checkpointer.wait()
    before = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(CheckpointSaveError, match="Read-only file system"):
            _save(checkpointer, 2)
            checkpointer.wait()
    deadline = time.monotonic() + 60
    while any(not t.daemon for t in set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if thread not in before and not thread.daemon]
    assert not left
    _save(checkpointer, 2)
    checkpointer.close()
    assert checkpointer.steps() == [1, 2]


def test_what_another_process_refuses_is_written_no_more_when_its_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(key: str, text: str, timeout_seconds: float) -> list[str]:
        del timeout_seconds
        return [text, json.dumps({"0": "OSError: [Errno 5] of process 1"})] if key.endswith("/begun") else [text]

    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    _save(checkpointer, 1)
    checkpointer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(agreement, "gathered", told)
        _save(checkpointer, 2)
        with pytest.raises(CheckpointSaveError, match="of process 1"):
            checkpointer.wait()
        # Orbax has nothing under way that would make it again.
        assert checkpointer._store is not None
        checkpointer._store.wait()
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("2")] == []
    _save(checkpointer, 2)
    checkpointer.close()
    assert checkpointer.steps() == [1, 2]


def test_a_failure_in_the_background_is_raised_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = array_store.ArrayStore.wait

    def full(self: array_store.ArrayStore) -> None:
        written(self)
        raise OSError(28, "No space left on device")

    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    _save(checkpointer, 1)
    checkpointer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(array_store.ArrayStore, "wait", full)
        _save(checkpointer, 2)
        with pytest.raises(CheckpointSaveError, match="No space left on device"):
            _save(checkpointer, 3)
    _save(checkpointer, 3)
    checkpointer.close()
    assert checkpointer.steps() == [1, 3]


def test_a_save_without_room_is_refused_in_one_line_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    _save(checkpointer, 1)
    checkpointer.wait()
    started: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(array_store.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
        patch.setattr(array_store.ArrayStore, "start", lambda *_: started.append(1))
        _save(checkpointer, 2)
        needed = sum(x.nbytes for x in jax.tree.leaves(make_trees(2)))
        with pytest.raises(
            CheckpointSaveError, match=rf"No space left on device: a save takes {needed:,} bytes, and 1 "
        ):
            checkpointer.wait()
    assert (started, "Traceback" in capfd.readouterr().err) == ([], False)
    _save(checkpointer, 3)
    checkpointer.close()
    assert checkpointer.steps() == [1, 3]


def test_a_disk_that_fills_up_during_a_save_gives_one_line_and_loses_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # Python's own, where pytest collects what can't be raised.
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    draw = np.random.default_rng(0)
    params = {f"layer{i}": jnp.asarray(draw.standard_normal((256, 256), np.float32)) for i in range(24)}
    checkpointer = OrbaxCheckpointer.Config().build(directory=tmp_path)
    checkpointer.save(1, params=params, opt={}, data={})
    checkpointer.wait()
    before, caught = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # As a full disk does, it fails all writes of the save that come after the first.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        checkpointer.save(2, params=params, opt={}, data={})
        with pytest.raises(CheckpointSaveError, match=r"checkpoint 2 .*File too large.*checkpoints are intact: \[1\]"):
            checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, caught)
    assert [record.getMessage()[:31] for record in caplog.records if record.levelno >= logging.ERROR] == [
        "checkpoint 2 could not be saved"
    ]
    checkpointer.save(3, params=params, opt={}, data={})
    checkpointer.close()
    assert checkpointer.steps() == [1, 3]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", [OrbaxCheckpointer, ShardedCheckpointer])
def test_a_reader_cannot_save_and_changes_nothing(
    tmp_path: Path, kind: type[OrbaxCheckpointer | ShardedCheckpointer]
) -> None:
    writer = kind.Config().build(directory=tmp_path)
    for step in (1, 2):
        _save(writer, step)
    writer.close()
    before = sorted(tmp_path.rglob("*"))
    reader = kind.Config().build(directory=tmp_path, read_only=True)
    reader.restore(abstract(make_trees()), step=1)
    assert reader.save(1, **make_trees(1)) is False
    with pytest.raises(CheckpointError, match="for reading only"):
        _save(reader, 2)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("file", "times"), [("/site-packages/orbax/checkpoint/write.py", 0), ("/home/user/own.py", 1)])
def test_what_other_writes_of_a_failed_save_raised_is_no_traceback(
    file: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def several() -> None:
        failing = {"asyncio": asyncio}
        exec(compile("async def write(): raise ValueError('disk full')", file, "exec"), failing)  # noqa: S102
        asyncio.ensure_future(failing["write"]())
        await asyncio.sleep(0)

    array_store._orbax()
    asyncio.run(several())
    gc.collect()
    assert len([record for record in caplog.records if "never retrieved" in record.getMessage()]) == times
