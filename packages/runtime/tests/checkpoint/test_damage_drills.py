"""Damage at random to a run on disk: every resume is bit for bit, from what is whole; nothing committed is removed."""

import os
import random
import shutil

import kanawa as kn
import pytest
from drills import drill_seed
from kanawa.composition.experiment import compose
from kanawa.contracts import CheckpointError
from kanawa_runtime.checkpoint.layout import committed_steps
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from tiny_lm import tiny

SAVED, STEPS = (2, 4, 6), 8
# Orbax leaves coroutines behind where one of several reads fails.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
MANY = int(os.environ.get("KANAWA_DRILLS", "20"))


def go_on(run, steps=STEPS, kind="orbax"):
    cfg = tiny()
    cfg.checkpoints.set(every_steps=2, keep_last=9)
    cfg.set(checkpointer=kn.component("checkpointers", kind).Config())
    return Loop(compose(cfg), run, steps=steps, screen=Screen()).execute()


def losses(run):
    return {step: record["loss"] for step, record in step_records(read_events(run / "events.jsonl")).items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    go_on(run)
    return losses(run)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    run = tmp_path_factory.mktemp("stopped") / "run"
    go_on(run, SAVED[-1])
    assert committed_steps(run / "checkpoints") == list(SAVED)
    return run


@pytest.fixture
def rng(record_drill):
    seed = drill_seed()
    record_drill(f"drill: damage by the seed {seed}")
    return random.Random(seed)


def flip(rng, run):
    """Flips one bit of one file of a checkpoint; returns what."""
    file = rng.choice(sorted(p for p in (run / "checkpoints").rglob("*") if p.is_file() and p.stat().st_size))
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data) * 8)
    data[place // 8] ^= 1 << place % 8
    file.write_bytes(data)
    return f"bit {place} of {file.relative_to(run)}"


def cut(rng, run):
    """Cuts one file short."""
    file = rng.choice(sorted(p for p in (run / "checkpoints").rglob("*") if p.is_file() and p.stat().st_size))
    os.truncate(file, rng.randrange(file.stat().st_size))
    return f"cut {file.relative_to(run)}"


def newest(rng, run):
    """Flips a bit of an array of the newest step."""
    folder = run / "checkpoints" / str(SAVED[-1])
    files = [*folder.glob("*/ocdbt.process_0/d/*"), *folder.glob("t*-*.p*.[0-9]*")]
    # The largest, for most of the arrays lies there.
    file = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"the middle of {file.relative_to(run)}"


def uncommit(rng, run):
    """Removes the commit files of some steps."""
    steps = rng.sample(SAVED, rng.randrange(1, 4))
    for step in steps:
        (run / "checkpoints" / str(step) / "COMMIT.json").unlink()
    return f"no COMMIT.json in {steps}"


def drill(rng, stopped, folder, count, damage, uninterrupted):
    """Damages copies of a run, and goes on with each; returns how many could."""
    went_on = 0
    for index in range(count):
        run = shutil.copytree(stopped, folder / f"{damage.__name__}-{index}")
        what = damage(rng, run)
        before = {path.name for path in (run / "checkpoints").iterdir()}
        try:
            outcome = go_on(run)
        except CheckpointError as error:
            assert str(run) in str(error), what
            assert outcome_of(run) == "failed"
        else:
            went_on += 1
            assert outcome.step == STEPS
            assert losses(run) == uninterrupted, what
        after = {path.name.partition(".")[0] for path in (run / "checkpoints").iterdir()}
        assert before <= after, (what, before, after)
    return went_on


def fall_back(rng, stopped, folder, count, uninterrupted, kind):
    """Damages the newest step of copies of a run; each goes on from the one before, and says so."""
    for index in range(count):
        run = shutil.copytree(stopped, folder / f"newest-{index}")
        what = newest(rng, run)
        outcome = go_on(run, kind=kind)
        assert (outcome.start_step, outcome.step) == (SAVED[-2], STEPS), what
        (told,) = [event for event in read_events(run / "events.jsonl") if event["event"] == "checkpoint_damaged"]
        assert (told["step"], told["used"], bool(told["reasons"])) == (SAVED[-1], SAVED[-2], True), what
        assert (run / "checkpoints" / f"{SAVED[-1]}.damaged").is_dir()
        assert losses(run) == uninterrupted, what


def outcome_of(run):
    return read_events(run / "events.jsonl")[-1]["outcome"]


def told(record_drill, count, went_on, name):
    record_drill(f"drill: {count} of {count} {name} found, {went_on} resumed bit for bit from what was whole")


@pytest.mark.parametrize(("damage", "name"), [(flip, "flipped bits"), (cut, "cut files"), (uncommit, "lost commits")])
def test_a_few(rng, stopped, tmp_path, uninterrupted, record_drill, damage, name):
    told(record_drill, 2, drill(rng, stopped, tmp_path, 2, damage, uninterrupted), name)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["orbax", "sharded"])
def test_many_fall_back_and_say_so(rng, tmp_path, uninterrupted, record_drill, kind):
    stopped = tmp_path / "stopped"
    go_on(stopped, SAVED[-1], kind)
    fall_back(rng, stopped, tmp_path, MANY, uninterrupted, kind)
    record_drill(
        f"drill: {MANY} of {MANY} damaged newest steps by {kind} were passed over and told, and resumed bit for bit"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("damage", "name"), [(flip, "flipped bits"), (cut, "cut files"), (uncommit, "lost commits")])
def test_many(rng, stopped, tmp_path, uninterrupted, record_drill, damage, name):
    told(record_drill, MANY, drill(rng, stopped, tmp_path, MANY, damage, uninterrupted), name)
