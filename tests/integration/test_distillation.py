"""A student learns from a run's model, on data and on what it wrote itself; the teacher stays out of what is served."""

import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.experiment import compose
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.trainer import Trainer


def trained(path, modify, steps, seed=0):
    """Returns the step events of a run that copies strings of two letters."""
    model = llama(num_layers=1, input_dim=32, num_heads=2, num_kv_heads=2, hidden_dim=32, vocab_size=10, tied=True)
    model.embedding.set(init_stddev=32**-0.5)
    cfg = Trainer.Config(
        model=model, data=Copying.Config(sequence_length=8, string_length=2), batch_size=16, steps=steps, seed=seed,
        learner=Learner.Config(schedule=Constant.Config(peak=5e-3)),
    )  # fmt: skip
    Loop(compose(cfg, None, tuple(modify), ()), path).execute()
    return [event for event in read_events(path / "events.jsonl") if event["event"] == "step"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "run"
    trained(path, [], 60)
    return path


def test_a_student_comes_to_agree_with_its_teacher_and_leaves_without_it(teacher, tmp_path):
    events = trained(tmp_path / "run", [f"distill:teacher={teacher},data_weight=0,mix=0.5"], 40, seed=1)
    losses = [event["loss"] for event in events]
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    stored = RunStore().load(tmp_path / "run")
    assert not any(path.startswith("loss.") for path in stored.params)
    # Started from the teacher itself, there is nothing to learn.
    Loop(
        compose(kn.experiment(str(tmp_path / "run")).config.clone(), None, (), ("steps=1",)),
        tmp_path / "same", initial=teacher,
    ).execute()  # fmt: skip
    (first,) = [event for event in read_events(tmp_path / "same" / "events.jsonl") if event["event"] == "step"]
    assert first["loss"] == pytest.approx(0.0, abs=1e-5)
    taught = flatten_paths(RunStore().load(teacher).params)
    assert taught.keys() == flatten_paths(stored.params).keys()


def test_it_learns_on_what_it_wrote_itself(teacher, tmp_path):
    rollouts = "grpo:reward=matching-tokens,group_size=4,new_tokens=2"
    events = trained(tmp_path / "run", [rollouts, f"distill:teacher={teacher},mix=1"], 12, seed=1)
    assert events[-1]["loss"] < events[0]["loss"]
    assert "reward" in events[-1]
