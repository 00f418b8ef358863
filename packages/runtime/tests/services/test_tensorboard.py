"""TensorBoard files of a real run, read back record by record."""

import importlib.util
import shutil
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_lm
from kanawa.composition.experiment import compose
from kanawa.errors import UsageError
from kanawa_runtime.services.curves import points
from kanawa_runtime.services.tensorboard import TensorBoardLogger
from kanawa_runtime.services.wandb import WandbLogger
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy


class HeldOut(tiny_lm.CountingTokens):
    """Counts, and holds out one batch."""

    class Config(tiny_lm.CountingTokens.Config):
        """Unchanged."""

    def held_out(self):
        return self.config.clone().set(num_rows=8).build()


def records(folder):
    """Yields TensorBoard's events, file by file in the order they were begun."""
    from tensorboardX.proto import event_pb2

    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            # Length, its checksum, the event, its checksum.
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event()
            event.ParseFromString(data[12 : 12 + length])
            yield event
            data = data[16 + length :]


def curves(folder):
    """Returns {tag: {step: value}} as TensorBoard shows it: a session's start voids what lies at or after its step."""
    found = {}
    for event in records(folder):
        if event.HasField("session_log") and event.step:
            for curve in found.values():
                for step in [step for step in curve if step >= event.step]:
                    del curve[step]
        for value in event.summary.value:
            content = value.simple_value if value.HasField("simple_value") else value.tensor.string_val[0].decode()
            found.setdefault(value.tag, {})[event.step] = content
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run to step 6 whose last checkpoint is lost, resumed from 4 and taken to 8."""
    cfg = tiny_lm.tiny().set(
        data=HeldOut.Config(),
        services=(TensorBoardLogger.Config(),),
        evaluation=EvaluationPolicy(every_steps=4),
        checkpoints=CheckpointPolicy(every_steps=4),
    )
    path = tmp_path_factory.mktemp("runs") / "run"
    assert Loop(compose(cfg), path, steps=6).execute().step == 6
    shutil.rmtree(path / "checkpoints" / "6")
    assert Loop(compose(cfg), path, steps=8).execute().start_step == 4
    return path


def test_losses_evaluations_and_metrics_are_those_of_the_events(run):
    from kanawa_runtime.runs.events import read_events, step_records

    events = read_events(run / "events.jsonl")
    drawn = curves(run / "tensorboard")
    for kind, tag in (("step", "train/loss"), ("eval", "eval/loss")):
        expected = {step: np.float32(e["loss"]) for step, e in step_records(events, kind).items()}
        # The first attempt's end at 6 was evaluated, lost with its checkpoint, and made again without a stop.
        expected = {step: loss for step, loss in expected.items() if kind == "step" or step != 6}
        assert {step: np.float32(v) for step, v in drawn[tag].items()} == expected
    assert list(drawn["train/loss"]) == list(range(1, 9))
    assert {"train/gradient_norm", "train/learning_rate", "train/tokens_per_second"} <= drawn.keys()
    assert {4, 8} <= drawn["checkpoint/bytes"].keys()


def test_a_resumed_run_voids_what_it_makes_again_and_goes_on(run):
    files = sorted((run / "tensorboard").iterdir())
    assert len(files) == 2
    starts = [e.step for e in records(run / "tensorboard") if e.HasField("session_log")]
    assert starts[-1] == 5


def test_the_config_is_there_as_text(run):
    config = curves(run / "tensorboard")["config/text_summary"]
    assert "    batch_size: 8" in next(iter(config.values()))


def test_points_of_odd_records():
    step = {"event": "step", "attempt": 1, "step": 3, "loss": "nan", "tokens": 64, "seconds": 0.5, "time": 1.0}
    drawn = dict(points({**step, "metrics": {"gradient_norm": 2.0, "note": "text", "on": True}}))
    assert np.isnan(drawn.pop("train/loss"))
    assert drawn == {
        "train/tokens": 64.0,
        "train/seconds": 0.5,
        "train/gradient_norm": 2.0,
        "train/tokens_per_second": 128.0,
    }
    assert not dict(points({"event": "something new", "loss": 1.0}))


@pytest.mark.parametrize(
    ("service", "library", "extra"),
    [(TensorBoardLogger, "tensorboardX", "tensorboard"), (WandbLogger, "wandb", "wandb")],
)
def test_a_missing_extra_is_named_before_anything_is_written(monkeypatch, tmp_path, service, library, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cfg = tiny_lm.tiny().set(services=(service.Config(),))
    with pytest.raises(UsageError) as caught:
        Loop(compose(cfg), tmp_path / "run")
    assert f"service {extra!r} needs {library}, which isn't installed; nothing was started" in str(caught.value)
    assert f'pip install "kanawa-runtime[{extra}]"' in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_sample_is_text(tmp_path):
    service = TensorBoardLogger.Config().build()
    run = SimpleNamespace(directory=str(tmp_path), attempt=1, start_step=0, config=tiny_lm.tiny())
    service.start(run)
    service.event(run, {"event": "sample", "step": 2, "prompt": "def ", "text": "f():\n  pass"})
    service.stop(run)
    assert curves(tmp_path / "tensorboard")["sample/text_summary"] == {2: "    def f():\n      pass"}
