"""What a loss of power leaves: the calls of a save are recorded, and what they promise is checked in their order."""

import os
import shutil
from pathlib import Path

import pytest
from kanawa_runtime.checkpoint import OrbaxCheckpointer, ShardedCheckpointer
from kanawa_runtime.storage.durable import write_durable

from .checkpoint_trees import make_trees


class Recorder:
    """The calls that make bytes and names durable, and those that change names, as they happen."""

    def __init__(self, monkeypatch):
        self.calls = []
        self._fsync, self._rmtree = os.fsync, shutil.rmtree
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(shutil, "rmtree", self.rmtree)
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self.renaming(getattr(os, name)))

    def fsync(self, descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor if isinstance(descriptor, int) else descriptor.fileno()}")
        self._fsync(descriptor)
        self.calls.append(("sync", path, ""))

    def renaming(self, call):
        def rename(source, target, **more):
            call(source, target, **more)
            self.calls.append(("rename", str(source), str(target)))

        return rename

    def rmtree(self, path, *args, **more):
        self.calls.append(("remove", str(path), ""))
        return self._rmtree(path, *args, **more)

    def index(self, kind, ending):
        """Returns where the last call of a kind stands whose last name ends so."""
        return max(i for i, (k, a, b) in enumerate(self.calls) if k == kind and (b or a).endswith(ending))

    def synced_before(self, end):
        """Returns the files and folders whose bytes and entries are on disk by then, under their present names."""
        synced = {}
        for index, (kind, path, target) in enumerate(self.calls[:end]):
            if kind == "sync":
                synced[path] = index
            elif kind == "rename":
                moved = {name: at for name, at in synced.items() if name == path or name.startswith(f"{path}/")}
                synced |= {target + name[len(path) :]: at for name, at in moved.items()}
                # An entry of the folder is new: what was synced of it before says nothing of this name.
                synced.pop(str(Path(target).parent), None)
        return synced


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


@pytest.mark.parametrize("kind", [OrbaxCheckpointer, ShardedCheckpointer])
def test_all_that_a_commit_covers_is_on_disk_before_it(tmp_path, recorder, kind):
    checkpointer = kind.Config().build(directory=tmp_path / "checkpoints")
    checkpointer.save(7, **make_trees(), data={}, meta={})
    checkpointer.close()
    step = tmp_path / "checkpoints" / "7"
    commit = recorder.index("rename", "/7/COMMIT.json")
    synced = recorder.synced_before(commit)
    covered = [path for path in step.rglob("*") if path.name != "COMMIT.json"] + [step, step.parent]
    missing = [str(path.relative_to(tmp_path)) for path in covered if str(path) not in synced]
    assert len(covered) > 3
    assert not missing, f"the commit could outlive these: {missing}"
    assert recorder.calls[commit + 1][:2] == ("sync", str(step)), "the commit itself is not durable when it is told"


@pytest.mark.parametrize("kind", [OrbaxCheckpointer, ShardedCheckpointer])
def test_a_step_stops_counting_on_disk_before_its_bytes_go(tmp_path, recorder, kind):
    checkpointer = kind.Config().build(directory=tmp_path, keep_last_n=1)
    for step in (1, 2):
        checkpointer.save(step, **make_trees(), data={}, meta={})
    checkpointer.close()
    renamed = recorder.index("rename", "/1.deleted")
    removed = recorder.index("remove", "/1.deleted")
    assert ("sync", str(tmp_path), "") in recorder.calls[renamed:removed]
    assert recorder.index("rename", "/2/COMMIT.json") < renamed


def test_the_recorder_sees_a_file_that_is_not_synced(tmp_path, recorder):
    write_durable(tmp_path / "sound", b"1")
    write_durable(tmp_path / "hasty", b"1", synced=False)
    synced = recorder.synced_before(len(recorder.calls))
    assert str(tmp_path / "sound") in synced
    assert str(tmp_path / "hasty") not in synced
    assert str(tmp_path) not in synced
