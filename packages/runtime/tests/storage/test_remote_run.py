"""Runs in a bucket: trained, resumed on another machine, read by every verb, and none the worse for what S3 does."""

import json
import os
import random
import shutil
import time

import jax
import numpy as np
import pytest
from drills import drill_seed
from kanawa.cli.main import main
from kanawa.composition.experiment import compose
from kanawa.contracts import (
    CheckpointError,
    LeaseHeldError,
    StorageConflictError,
    StorageError,
    StorageRefusedError,
    open_storage,
)
from kanawa_runtime.checkpoint import ShardedCheckpointer
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.runs.run_directory import RunDirectory
from kanawa_runtime.storage import mirror
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import Screen
from tiny_lm import tiny

STEPS = 8


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Returns a function that makes this another machine: nothing of a run is here any more."""

    def another():
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))
    return another


def go_on(place, steps=STEPS, **checkpointer):
    cfg = tiny()
    cfg.checkpoints.set(every_steps=2, keep_last=9)
    cfg.checkpointer.set(**checkpointer)
    return Loop(compose(cfg), place, steps=steps, screen=Screen()).execute()


def events(place):
    return read_events(readable_folder(place) / "events.jsonl")


def losses(place):
    return {step: record["loss"] for step, record in step_records(events(place)).items()}


def told(place, kind):
    return [event["step"] for event in events(place) if event["event"] == kind]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = tmp_path_factory.mktemp("local") / "run"
    go_on(run)
    return losses(run)


def test_a_run_goes_on_elsewhere_and_every_verb_reads_it(address, machine, uninterrupted, capsys):
    assert go_on(address, 5).saved == f"{address}/checkpoints/5"
    machine()
    outcome = go_on(address)
    assert (outcome.start_step, outcome.step) == (5, STEPS)
    assert losses(address) == uninterrupted
    names = set(open_storage(address).sizes())
    assert {"config.json", "plugins.json", "events.jsonl", "checkpoints/commits.json"} <= names
    machine()
    assert open_run(address, step=4).step == 4
    assert main(["generate", address, "--prompt-ids", "1,2,3", "--max-tokens", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) == 2
    assert main(["report", address]) == 0
    assert f"wrote {address}/report.html" in capsys.readouterr().out
    assert "report.html" in open_storage(address).sizes()
    assert main(["train", address, "--steps", "9", "--on", "cpu"]) == 0
    assert f"resuming at step 8 from {address}/checkpoints/8" in capsys.readouterr().err
    assert main(["train", "tiny-lm", "--set", "seed=5", "--on", "cpu", "--run", address]) == 2
    assert f"{address} belongs to another experiment" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil",
    ["fail", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("vanish", "deny")), "cut_uploads"],
)
def test_training_goes_on_while_the_bucket_does_not_and_saves_again(spoil, address, server, uninterrupted, machine):
    go_on(address, 3)
    if spoil == "fail":
        server.fail(key="checkpoints/4/")
    else:
        answers = {"vanish": ("404 Gone", "NoSuchBucket"), "deny": ("403 No", "AccessDenied"), "cut_uploads": None}
        if answers[spoil] is None:
            server.cut_uploads(times=3, key="checkpoints/4/")
        else:
            server.fail(*answers[spoil], key="checkpoints/4/")
    go_on(address)
    server.mend()
    assert losses(address) == uninterrupted
    saved = ShardedCheckpointer.Config().build(directory=f"{address}/checkpoints", read_only=True).steps()
    assert (told(address, "checkpoint_failed"), saved) == ([4], [2, 3, 6, 8])
    assert not [key for key in open_storage(f"{address}/checkpoints").sizes() if key.startswith("4/")]
    machine()
    assert open_run(address).step == STEPS


def test_a_slow_bucket_costs_checkpoints_and_no_step(address, server, uninterrupted):
    server.delay(1.5, key="checkpoints/2/")
    go_on(address, patience_seconds=0.0)
    assert losses(address) == uninterrupted
    assert 4 in told(address, "checkpoint_skipped")
    assert told(address, "checkpoint_committed")[0] == 2
    assert told(address, "checkpoint_committed")[-1] == STEPS


def test_a_start_while_the_bucket_refuses_is_worth_another_and_loses_nothing(address, server, capsys):
    go_on(address, 3)
    server.fail()
    assert main(["train", "tiny-lm", "--on", "cpu", "--run", address]) == LOST
    said = capsys.readouterr().err
    assert "SlowDown" in said and "nothing is lost: the same command resumes the run" in said
    server.mend()
    assert go_on(address).start_step == 3


def test_records_are_at_the_address_as_soon_as_their_checkpoint_counts(address, monkeypatch, server):
    monkeypatch.setattr(mirror, "PUSH_SECONDS", 3600.0)
    with RunDirectory.open(address, tiny()) as run:
        run.events().write("step", step=1, loss=1.0)
        run.events().write("checkpoint_committed", step=1)
        deadline = time.monotonic() + 60
        storage = open_storage(address)
        while b"checkpoint_committed" not in storage.read("events.jsonl") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert b'"step": 1, "loss": 1.0' in storage.read("events.jsonl")


def harm(storage, rng, keys, what):
    """Spoils one object of a step, or two; returns what was there."""
    key = rng.choice(keys)
    before = {key: storage.read(key)}
    data = bytearray(before[key])
    place = rng.randrange(len(data) * 8)
    if what == "flip":
        data[place // 8] ^= 1 << place % 8
    elif what == "cut":
        del data[place // 8 :]
    elif what == "swap":
        other = rng.choice([name for name in keys if name != key])
        before[other] = storage.read(other)
        data = before[other]
        storage.write(other, before[key])
    if what == "delete":
        storage.delete([key])
    else:
        storage.write(key, bytes(data))
    return before


def damage(address, rng, step, counts, record_drill):
    """Spoils a step's objects again and again, each time restored bit for bit or passed over with the reason."""
    storage = open_storage(f"{address}/checkpoints")
    keys = sorted(storage.sizes(f"{step}/"))
    opened = open_run(address, step=step)
    state = opened.trainer.abstract_state(opened.environment)
    asked = {"params": state.params, "state": state.state, "opt": state.opt}
    reader = ShardedCheckpointer.Config().build(directory=f"{address}/checkpoints", read_only=True)
    sound = {number: bits(reader.restore(asked, step=number)) for number in reader.steps()}
    assert sound[step] != sound[min(sound)]
    for what, count in counts.items():
        passed = 0
        for _ in range(count):
            before = harm(storage, rng, keys, what)
            restored = reader.restore(asked)
            assert bits(restored) == sound[restored.step], before.keys()
            if restored.step == step:
                # For people who copy the prefix: commits.json says what counts.
                assert any(key.endswith("COMMIT.json") for key in before), f"{what} of {before.keys()} went unseen"
            else:
                assert restored.damaged[step], before.keys()
                passed += 1
            for key, data in before.items():
                storage.write(key, data)
        record_drill(
            f"drill: {count} of {count} ({what}) in a bucket: {passed} passed over with the reason, {count - passed} "
            "of no account, 0 wrong"
        )
        assert passed > 0


def bits(restored):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(restored.items)]


def test_damage_in_a_bucket_is_found_and_passed_over(address, record_drill):
    go_on(address, 4)
    damage(address, random.Random(7), 4, {"flip": 5, "cut": 3, "delete": 3, "swap": 3}, record_drill)
    storage = open_storage(f"{address}/checkpoints")
    storage.delete([key for key in storage.sizes("4/") if key.endswith(".00000")])
    outcome = go_on(address, 5)
    assert outcome.start_step == 2
    (event,) = [event for event in events(address) if event["event"] == "checkpoint_damaged"]
    assert (event["step"], event["used"]) == (4, 2)
    assert any(key.startswith("4.damaged/") for key in storage.sizes())


@pytest.mark.nightly
def test_much_damage_in_a_bucket(address, record_drill):
    go_on(address, 4)
    seed = drill_seed()
    record_drill(f"drill: damage in a bucket by the seed {seed}")
    damage(address, random.Random(seed), 4, {"flip": 500, "cut": 100, "delete": 100, "swap": 100}, record_drill)


@pytest.mark.nightly
def test_many_fall_back_in_a_bucket_and_say_so(address, uninterrupted, machine, record_drill):
    count = int(os.environ.get("KANAWA_DRILLS", "20"))
    seed = drill_seed()
    rng = random.Random(seed)
    go_on(f"{address}/stopped", 6)
    here = open_storage(address)
    for index in range(count):
        run = f"{address}/{index}"
        for key in here.sizes("stopped/"):
            here.copy(key, f"{index}/{key.partition('/')[2]}")
        machine()
        storage, what = open_storage(f"{run}/checkpoints"), rng.choice(["flip", "cut", "delete"])
        sizes = storage.sizes("6/")
        # The largest holds the arrays; of any other the drill above tells.
        harm(storage, rng, [max(sizes, key=lambda key: sizes[key])], what)
        assert go_on(run).start_step == 4, (seed, index, what)
        (event,) = [event for event in events(run) if event["event"] == "checkpoint_damaged"]
        assert (event["step"], event["used"], bool(event["reasons"])) == (6, 4, True)
        assert any(key.startswith("6.damaged/") for key in storage.sizes())
        assert losses(run) == uninterrupted
    record_drill(
        f"drill: {count} of {count} damaged newest steps in a bucket were passed over and told, and resumed bit for "
        f"bit (seed {seed})"
    )


def test_a_second_writer_is_refused(address, machine):
    with RunDirectory.open(address, tiny()):
        machine()  # its lock would tell: the lease has to
        with pytest.raises(LeaseHeldError, match=rf"{address} is being written by process \d+ on"):
            RunDirectory.open(address, tiny())


@pytest.mark.parametrize(("spoil", "said"), [("deny", "AccessDenied"), ("vanish", "NoSuchBucket")])
def test_a_bucket_that_refuses_at_the_start_is_told(spoil, said, address, server, capsys):
    getattr(server, spoil)()
    with pytest.raises(StorageRefusedError, match=rf"{address}.*{said}.*Check the bucket"):
        go_on(address)
    assert main(["eval", address]) == 2
    assert said in capsys.readouterr().err


def test_commits_without_objects_does_not_begin_the_run_anew(address):
    go_on(address, 4)
    storage = open_storage(f"{address}/checkpoints")
    storage.delete(list(storage.sizes()))
    with pytest.raises(CheckpointError, match=rf"the events of {address} record checkpoints, the newest of step 4"):
        go_on(address)


def test_a_run_that_was_removed_there_leaves_nothing_to_a_new_one(tmp_path):
    address, folder = f"file://{tmp_path}/there", tmp_path / "here"
    (tmp_path / "there").mkdir()
    first = mirror.Mirror(address, folder)
    first.pull()
    (folder / "left_out.json").write_text("{}")
    first.push()
    shutil.rmtree(tmp_path / "there")
    (tmp_path / "there").mkdir()
    mirror.Mirror(address, folder).pull()
    assert not (folder / "left_out.json").exists()
    assert [path.read_text() for path in tmp_path.glob("here.removed-*/left_out.json")] == ["{}"]


def test_a_file_of_ours_that_was_taken_for_failed_is_no_other_writer(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    writer = mirror.Mirror(f"file://{tmp_path}/there", tmp_path / "here")
    writer.pull()
    log, replace = tmp_path / "here" / "events.jsonl", writer.storage.replace

    def answer_is_lost(*arguments):
        replace(*arguments)
        message = "no answer"
        raise StorageError(message)

    log.write_text("one\n")
    with monkeypatch.context() as patch:
        patch.setattr(writer.storage, "replace", answer_is_lost)
        with pytest.raises(StorageError, match="no answer"):
            writer.push()
    log.write_text("one\ntwo\n")
    writer.push()
    assert (tmp_path / "there" / "events.jsonl").read_text() == "one\ntwo\n"
    (tmp_path / "there" / "events.jsonl").write_text("somebody else's\n")
    log.write_text("one\ntwo\nthree\n")
    with pytest.raises(StorageConflictError):
        writer.push()


def test_long_logs_go_in_parts_and_come_back_whole(address, tmp_path):
    writer = mirror.Mirror(address, tmp_path / "one", part_bytes=100)
    writer.pull()
    log = tmp_path / "one" / "events.jsonl"
    for size in (50, 250, 420):
        log.write_bytes(bytes(range(256)) * 2)
        with log.open("r+b") as file:
            file.truncate(size)
        writer.push()
        reader = mirror.Mirror(address, tmp_path / f"read-{size}")
        reader.pull()
        assert (tmp_path / f"read-{size}" / "events.jsonl").read_bytes() == log.read_bytes()
    assert len([key for key in writer.storage.sizes() if key.startswith("events")]) == 5
    writer.close()
