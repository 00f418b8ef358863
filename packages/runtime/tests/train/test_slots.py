"""A stranger's checkpointer, loader and service fit the trainer's slots; the trainer knows them by contract alone."""

import pickle

import jax
import kanawa as kn
import numpy as np
import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.contracts import Batch, Checkpointer, CheckpointSaveError, Loader, Restored, Service
from kanawa.errors import ConfigError
from kanawa_runtime.exit_codes import verdict
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.services.tensorboard import TensorBoardLogger
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.outcome import shown
from kanawa_runtime.train.screen import LineScreen


class PickleCheckpointer(Checkpointer):
    """One file a step, written at once."""

    class Config(Checkpointer.Config):
        full_at: int | None = None

    def steps(self):
        return sorted(int(path.stem) for path in self.directory.glob("*.pickle"))

    def location(self, step):
        return str(self.directory / f"{step}.pickle")

    def save(self, step, *, params, opt, state=None, data=None, meta=None, provisional=False):
        if step == self.config.full_at:
            raise CheckpointSaveError("the disk is full")  # noqa: EM101
        arrays = jax.tree.map(np.asarray, {"params": params, "opt": dict(opt), "state": state or {}})
        self.provisional(step).write_bytes(pickle.dumps((arrays, data, dict(meta or {}))))
        if not provisional:
            self.commit(step)
        return True

    def provisional(self, step):
        return self.directory / f"{step}.provisional"

    def commit(self, step):
        if self.provisional(step).exists():
            self.provisional(step).rename(self.location(step))
            self.on_event("checkpoint_committed", {"step": step, "path": self.location(step)})

    def restore(self, abstract, *, step=None):
        step = self.latest() if step is None else step
        if step is None:
            return None
        with open(self.location(step), "rb") as file:
            arrays, data, meta = pickle.load(file)  # noqa: S301
        items = {item: jax.tree.map(jax.numpy.asarray, arrays[item]) for item in abstract}
        return Restored(step, items, data, meta)

    def wait(self):
        for path in self.directory.glob("*.provisional"):
            path.unlink()

    def close(self):
        self.wait()


class PlainLoader(Loader):
    """Reads each batch when it is asked for."""

    class Config(Loader.Config):
        """No fields."""

    def __iter__(self):
        row = self.start_row
        while True:
            rows = [self.source.row(row + place) for place in self.local_rows]
            yield Batch(**{name: np.stack([row[name] for row in rows]) for name in rows[0]})
            row += self.global_batch


class Diary(Service):
    """Keeps the kinds of events and what it knew of the run."""

    class Config(Service.Config):
        """No fields of its own."""

    seen: list = []  # noqa: RUF012 - one for all: the trainer builds the service itself

    def start(self, run):
        Diary.seen += [("start", run.start_step, run.attempt, run.config.batch_size)]

    def event(self, run, event):
        Diary.seen += [event["event"]]

    def stop(self, run):
        Diary.seen += ["stop"]


def config(**changes):
    return tiny_lm.tiny().set(**changes)


def run(cfg, path, steps, lines=None):
    return Loop(
        compose(cfg), path, steps=steps, screen=LineScreen([].append if lines is None else lines.append)
    ).execute()


def losses(path):
    return {step: e["loss"] for step, e in step_records(read_events(path / "events.jsonl")).items()}


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "run"
    run(config(), path, 12)
    return losses(path)


def test_a_strangers_checkpointer_and_loader_train_and_resume_to_the_same_losses(tmp_path, ours):
    cfg = config(checkpointer=PickleCheckpointer.Config(), loader=PlainLoader.Config())
    lines = []
    assert run(cfg, tmp_path / "run", 5, lines).saved == str(tmp_path / "run" / "checkpoints" / "5.pickle")
    assert run(cfg, tmp_path / "run", 12, lines).start_step == 5
    assert losses(tmp_path / "run") == ours
    assert f"resuming at step 5 from {shown(tmp_path / 'run' / 'checkpoints' / '5.pickle')}" in lines


def test_a_run_made_with_one_checkpointer_is_used_with_it(tmp_path):
    from kanawa_runtime.runs.open_run import open_run

    cfg = config(checkpointer=PickleCheckpointer.Config())
    run(cfg, tmp_path / "run", 3)
    assert open_run(tmp_path / "run").step == 3


def test_an_end_that_cannot_be_saved_is_worth_another_start(tmp_path):
    cfg = config(checkpointer=PickleCheckpointer.Config(full_at=4))
    with pytest.raises(CheckpointSaveError, match="the disk is full") as failed:
        run(cfg, tmp_path / "run", 4)
    assert verdict(failed.value.exit_code) == "retry"
    assert read_events(tmp_path / "run" / "events.jsonl")[-1]["outcome"] == "failed"


def test_a_checkpoint_on_the_way_that_cannot_be_saved_is_told_and_training_goes_on(tmp_path):
    cfg = config(checkpointer=PickleCheckpointer.Config(full_at=20))
    lines = []
    assert run(cfg, tmp_path / "run", 22, lines).step == 22
    assert "training continues without checkpoint 20" in lines


def test_a_service_sees_the_run_from_its_first_event_to_its_last(tmp_path):
    Diary.seen.clear()
    cfg = config(services=(Diary.Config(),))
    run(cfg, tmp_path / "run", 2)
    run(cfg, tmp_path / "run", 4)
    half = Diary.seen.index("stop") + 1
    first, second = Diary.seen[:half], Diary.seen[half:]
    assert first[0] == ("start", 0, 1, 8)
    assert second[0] == ("start", 2, 2, 8)
    for seen in (first, second):
        assert seen[1] == "run_started"
        assert seen.count("step") == 2
        assert seen[-3:] == ["checkpoint_committed", "run_ended", "stop"]
    # Where seconds went is for readers of the log: a service that was told of it each second would make it itself.
    kinds = [e["event"] for e in read_events(tmp_path / "run" / "events.jsonl")]
    assert [kind for kind in kinds if kind not in ("attempt_opened", "time_spent")] == [
        kind for kind in Diary.seen if isinstance(kind, str) and kind != "stop"
    ]


def test_a_service_is_stopped_where_the_run_fails(tmp_path):
    Diary.seen.clear()
    cfg = config(services=(Diary.Config(),))
    cfg.learner.set(clip_norm=None)
    cfg.learner.schedule.set(peak=1e38)
    with pytest.raises(kn.KanawaError, match="nothing of this step is saved"):
        run(cfg, tmp_path / "run", 10)
    assert Diary.seen[-2:] == ["run_ended", "stop"]


def test_the_modifier_appends_a_service_and_configures_one_anew():
    asked = ["service:name=tensorboard", 'service:name=tensorboard,values={"folder": "tb"}']
    composition = compose(config(services=(Diary.Config(),)), modifiers=asked)
    assert composition.config.services == (Diary.Config(), TensorBoardLogger.Config(folder="tb"))


def test_services_are_set_by_their_names():
    composition = compose(config(), overrides=['services=["tensorboard"]'])
    assert composition.config.services == (TensorBoardLogger.Config(),)


def test_a_config_without_the_slot_says_so():
    with pytest.raises(ConfigError, match="TinyLM.Config has no services slot"):
        compose(tiny_lm.TinyLM.Config(), modifiers=["service:name=tensorboard"])


def test_describing_an_experiment_imports_neither_writer_nor_reader():
    import subprocess
    import sys

    program = "import sys, kanawa_runtime.train.trainer; print(*sorted({'orbax', 'grain', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
