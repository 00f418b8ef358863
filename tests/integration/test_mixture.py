"""A run on a mixture: the loss of each source in its events, and weights that change by step and at a restart."""

import json

import kanawa as kn
import numpy as np
import pytest
from kanawa.composition.experiment import compose
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.checkpoint import AutoCheckpointer
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.data.corpus import EmbeddedCorpus
from kanawa_runtime.data.mixture import Mixture, WeightChange
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.run_directory import checkpoints_of
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen
from kanawa_runtime.train.trainer import Trainer

LENGTH, BATCH = 16, 8
SCHEDULE = (WeightChange(weights={"noise": 0.0, "copies": 1.0}, from_step=6),)


def config(noise=0.5, schedule=SCHEDULE, **fields):
    sources = {"noise": RandomTokens.Config(vocab_size=9), "copies": Copying.Config()}
    data = Mixture.Config(
        sources=sources, weights={"noise": noise, "copies": 1 - noise}, schedule=schedule, sequence_length=LENGTH
    )
    model = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=9)
    return Trainer.Config(model=model, data=data, batch_size=BATCH, steps=10, **fields)


def train(cfg, run, steps):
    lines = []
    Loop(compose(cfg), run, steps=steps, screen=LineScreen(lines.append)).execute()
    return read_events(run / "events.jsonl"), lines


def consumed(run_config, history, until):
    """Which rows of each source the first rows of a run were, as its last attempt has them."""
    mixture = run_config.seeded_data().in_batches(BATCH).build()
    mixture.resume(until, history)
    return [mixture.order.at(row) for row in range(until)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture") / "run"
    events, lines = train(config(), path, 4)
    again, more = train(config(noise=0.25), path, 10)
    return path, again, lines + more


def test_every_step_says_the_loss_of_each_source_and_they_add_up(run):
    steps = step_records(run[1])
    assert len(steps) == 10
    for step in steps.values():
        losses, tokens = step["loss_by_source"], step["tokens_by_source"]
        assert sum(tokens.values()) == step["tokens"]
        mean = sum(losses[name] * tokens[name] for name in losses) / step["tokens"]
        assert mean == pytest.approx(step["loss"], rel=1e-5)
        assert not any("loss_of_source" in name for name in step["metrics"])
    assert set(steps[1]["loss_by_source"]) == {"noise", "copies"}
    # By the schedule; a source that gave no row has no loss.
    assert set(steps[7]["loss_by_source"]) == {"copies"}


def test_weights_that_change_are_events_and_lines(run):
    changes = [event for event in run[1] if event["event"] == "data_changed"]
    assert [(c["step"], c["row"], c["reason"]) for c in changes] == [(5, 32, "restart"), (7, 48, "schedule")]
    assert changes[0]["weights"] == {"noise": 0.25, "copies": 0.75}
    assert "step 5: from row 32 on, weights are noise 0.25, copies 0.75" in run[2]
    started = [event for event in run[1] if event["event"] == "run_started"]
    assert "data.weights" in json.dumps(started[1]["config_changes"])


def test_rows_of_each_source_go_on_where_they_were(run):
    record = saved_data(run[0])
    rows = consumed(config(noise=0.25), record["source"], record["row"])
    assert record["row"] == 80
    for source in range(2):
        own = [row for s, row in rows if s == source]
        assert own == list(range(len(own)))
        assert record["source"]["taken"][("noise", "copies")[source]] == len(own)
    # Rows that the first attempt trained on are those that the second one counts as taken.
    first = config().seeded_data().in_batches(BATCH).build()
    assert rows[:32] == [first.order.at(row) for row in range(32)]
    assert sum(source == 0 for source, _ in rows[:32]) - sum(source == 0 for source, _ in rows[32:48]) > 4
    assert [past["row"] for past in record["source"]["weights"]] == [0, 32, 48]


def saved_data(path):
    """What the newest checkpoint holds of the data."""
    checkpoints = AutoCheckpointer.Config().build(directory=checkpoints_of(path), read_only=True)
    return checkpoints.restore({}).data


def test_sources_that_stay_are_pinned_and_the_order_of_rows_with_them(run, tmp_path):
    cfg = config(noise=0.25)
    cfg.data.set(block_rows=9)
    with pytest.raises(kn.KanawaError, match="belongs to another experiment"):
        train(cfg, run[0], 12)


def test_evaluation_says_the_loss_of_each_source_beside_sets_without_any(tmp_path):
    root = tmp_path / "texts"
    root.mkdir()
    for number in range(60):
        (root / f"{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n" * 3)

    def text(**fields):
        corpus = EmbeddedCorpus.Config(root=str(root), validation_one_in=5, **fields)
        source = TextSource.Config(corpus=corpus, sequence_length=LENGTH)
        source.tokenizer.set(vocab_size=270)
        return source

    cfg = config(schedule=())
    cfg.data.set(sources={"noise": text(), "copies": text()})
    cfg.model.set(vocab_size=300)
    cfg.set(steps=2)
    cfg.evaluation.set(sets={"plain": text()})
    events, _ = train(cfg, tmp_path / "run", 2)
    [evaluation] = [event for event in events if event["event"] == "eval"]
    assert set(evaluation["loss_by_source"]) == {"noise", "copies"}
    # Both sources hold the same text out.
    assert evaluation["loss_by_source"]["noise"] == pytest.approx(evaluation["loss_by_source"]["copies"])
    assert sum(evaluation["tokens_by_source"].values()) == evaluation["tokens"]
    assert np.isfinite(evaluation["sets"]["plain/loss"]) and "plain/loss_by_source" not in evaluation["sets"]
