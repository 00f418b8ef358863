"""Quick places beside the run's own: newer steps, gone on from where they are sound, and never worth a run."""

import shutil
import uuid
from pathlib import Path

import kanawa as kn
import pytest
from kanawa.composition.experiment import compose
from kanawa.contracts import CheckpointSaveError, LeaseLostError, open_storage
from kanawa.errors import ConfigError, UsageError
from kanawa_runtime.checkpoint import OrbaxCheckpointer, ShardedCheckpointer, background, sharded
from kanawa_runtime.checkpoint.add_tier import AddTier
from kanawa_runtime.checkpoint.roots.directory import DirectoryRoot
from kanawa_runtime.checkpoint.tiers import Tier
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from tiny_lm import tiny

from .checkpoint_trees import abstract, assert_bitwise, make_trees


@pytest.fixture(params=["file", "ram"])
def place(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/disk"
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("this machine has no /dev/shm")
    # Memory is the machine's: another session's tests have folders of the same names.
    place = f"ram:///tests/{uuid.uuid4().hex}"
    yield place
    shutil.rmtree(open_storage(place).root, ignore_errors=True)


KINDS = [OrbaxCheckpointer, ShardedCheckpointer]


def checkpointer(directory, place, kind=ShardedCheckpointer, **more):
    tiers = (Tier(place=place, every_steps=2, keep_last=2),)
    return kind.Config(tiers=tiers).build(directory=directory, **more)


def save(writer, step, **more):
    return writer.save(step, **make_trees(step), data={"row": step}, meta={}, **more)


def restored(writer):
    found = writer.restore(abstract(make_trees()))
    assert_bitwise(found.items, make_trees(found.step))
    assert found.data == {"row": found.step}
    return found


def files(place):
    storage = open_storage(place)
    return sorted(path for path in storage.root.rglob("*") if path.is_file() and not path.name.startswith("."))


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_sound_step_of_all_places_is_gone_on_from(tmp_path, place, kind):
    told = []

    def tell(name, fields):
        told.append((name, fields["step"]))

    writer = checkpointer(tmp_path / "run", place, kind, on_event=tell)
    assert [writer.due(step) for step in (1, 2, 3)] == [False, True, False]
    save(writer, 4)
    for step in (6, 8, 10):
        save(writer, step, quick=True)
    writer.wait()
    assert writer.steps() == [4]
    assert [step for kind, step in told if kind == "tier_committed"] == [4, 6, 8, 10]
    assert [step for kind, step in told if kind == "checkpoint_committed"] == [4]
    assert sorted({int(path.parent.name) for path in files(place)}) == [8, 10]
    writer.close()
    assert restored(checkpointer(tmp_path / "run", place, kind)).step == 10
    # Of damage the tier's own newest sound step is next, and the run's own where the whole tier is gone.
    (volume,) = [path for path in files(place) if path.parent.name == "10" and path.name.endswith(".00000")]
    volume.write_bytes(volume.read_bytes()[:-9])
    again = checkpointer(tmp_path / "run", place, kind, on_event=tell)
    found = restored(again)
    assert (found.step, list(found.damaged), told[-1]) == (8, [10], ("checkpoint_damaged", 10))
    shutil.rmtree(open_storage(place).root)
    assert restored(checkpointer(tmp_path / "run", place, kind)).step == 4
    assert restored(kind.Config().build(directory=tmp_path / "run", read_only=True)).step == 4


def test_another_run_and_a_run_that_went_back_find_nothing_of_it(tmp_path, place):
    writer = checkpointer(tmp_path / "run", place)
    save(writer, 2)
    save(writer, 4, quick=True)
    writer.close()
    assert checkpointer(tmp_path / "other", place).restore(abstract(make_trees())) is None
    back = checkpointer(tmp_path / "run", place)
    assert back.restore(abstract(make_trees()), step=2).step == 2
    back.go_back(2)
    back.close()
    assert restored(checkpointer(tmp_path / "run", place)).step == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_fails_costs_the_run_nothing(tmp_path, kind):
    told = []
    place = f"file://{tmp_path}/disk"

    def tell(name, fields):
        told.append((name, fields.get("tier")))

    writer = checkpointer(tmp_path / "run", place, kind, on_event=tell)
    save(writer, 2)
    writer.wait()
    shutil.rmtree(tmp_path / "disk")
    Path(tmp_path / "disk").write_text("no folder any more")
    save(writer, 4)
    writer.close()
    assert writer.steps() == [2, 4]
    assert told[-2:] == [("checkpoint_failed", place), ("checkpoint_committed", None)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_stood_still_writes_nothing_more_where_its_heir_saves(tmp_path, kind):
    place, told = f"file://{tmp_path}/disk", []
    zombie = checkpointer(tmp_path / "run", place, kind, on_event=lambda name, fields: told.append(name))
    save(zombie, 2)
    zombie.wait()
    zombie.save(4, **make_trees(44), data={"row": 44}, meta={}, quick=True, provisional=True)
    heir = checkpointer(tmp_path / "run", place, kind)
    save(heir, 4, quick=True)
    heir.close()
    told.clear()
    zombie.commit(4)
    with pytest.raises(LeaseLostError, match=r"disk/.*/0 was taken over by another attempt of this run"):
        zombie.wait()
    assert told == ["checkpoint_failed"]
    # Nor at the start of a save, with the run's own place asked as well.
    with pytest.raises(LeaseLostError, match="taken over by another attempt"):
        save(zombie, 6)
    assert restored(checkpointer(tmp_path / "run", place, kind)).step == 4


def test_what_an_attempt_that_stood_still_writes_late_costs_its_heir_no_step(tmp_path, place, monkeypatch):
    make_room = DirectoryRoot.make_room

    def late(root, step):
        make_room(root, step)
        if root.is_private:
            root.write(step, "t0-9.p00000.00000", b"late")

    monkeypatch.setattr(DirectoryRoot, "make_room", late)
    heir = checkpointer(tmp_path / "run", place)
    save(heir, 4, quick=True)
    heir.close()
    assert restored(checkpointer(tmp_path / "run", place)).step == 4


@pytest.mark.parametrize("kind", KINDS)
def test_copies_that_do_not_fit_in_memory_cost_a_place_and_no_run(tmp_path, monkeypatch, kind):
    told = []
    writer = checkpointer(
        tmp_path / "run", f"file://{tmp_path}/disk", kind, on_event=lambda name, fields: told.append((name, fields))
    )
    save(writer, 2)
    writer.wait()
    told.clear()

    def full(trees):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(background, "snapshot", full)
        patch.setattr(sharded, "snapshot", full)
        save(writer, 4)
        if kind is ShardedCheckpointer:
            with pytest.raises(CheckpointSaveError, match=r"checkpoint 4 could not be saved.*MemoryError"):
                writer.wait()
        writer.wait()
    failed = [fields for name, fields in told if name == "checkpoint_failed"]
    assert "MemoryError" in failed[0]["error"]
    assert writer.steps() == ([2] if kind is ShardedCheckpointer else [2, 4])
    save(writer, 6)
    writer.close()
    assert restored(checkpointer(tmp_path / "run", f"file://{tmp_path}/disk", kind)).step == 6


def test_a_trained_run_resumes_from_memory_bit_for_bit(tmp_path, place):
    def go_on(run, steps):
        cfg = tiny()
        cfg.checkpoints.set(every_steps=4)
        cfg = AddTier.Config(place=place, every_steps=1).build()(cfg)
        return Loop(compose(cfg), run, steps=steps, screen=Screen()).execute()

    def losses(run):
        return [record["loss"] for record in step_records(read_events(run / "events.jsonl")).values()]

    def folders():
        return set(open_storage(place).root.iterdir())

    go_on(tmp_path / "whole", 7)
    others = folders()
    go_on(tmp_path / "cut", 6)
    # Each run's folder is named by its identity, drawn by chance: no order tells whose is whose.
    (own,) = folders() - others
    # The run's own last save is lost, as by a machine that dies in it: memory has the step.
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "6")
    assert go_on(tmp_path / "cut", 7).start_step == 6
    (prepared,) = [e for e in read_events(tmp_path / "cut" / "events.jsonl") if e["event"] == "prepared"][1:]
    assert prepared["path"] == str(own / "0" / "6")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_places_that_are_none_are_told(tmp_path):
    for place, said in (
        ("disk", "is no address; expected ram:///NAME"),
        ("s3://bucket/x", "is not a folder of a host"),
    ):
        with pytest.raises(UsageError, match=said):
            checkpointer(tmp_path, place)
    with pytest.raises(ConfigError, match="has no checkpointer slot"):
        AddTier.Config(place="ram:///x").build()(tiny().model)
    twice = AddTier.Config(place="ram:///x").build()(AddTier.Config(place="ram:///x", keep_last=9).build()(tiny()))
    assert [(tier.place, tier.keep_last) for tier in twice.checkpointer.tiers] == [("ram:///x", 2)]
    assert kn.host().name_of(AddTier) == "tier"
