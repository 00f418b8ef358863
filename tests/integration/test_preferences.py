"""Preferences end to end: margins and rewards that rise, references, eight devices, microbatches, exports, refusals."""

import json
import os

from xla_options import xla_flags

os.environ["XLA_FLAGS"] = xla_flags(8)

import kanawa as kn
import numpy as np
import pytest
from kanawa.composition.experiment import compose
from kanawa.errors import KanawaError
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import JsonLines
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.trainer import Trainer

LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good completions repeat the prompt's letter, bad ones another."""
    path = tmp_path_factory.mktemp("pairs")
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(96):
        good, bad = draw.choice(len(LETTERS), 2, replace=False)
        rows.append((LETTERS[good], LETTERS[good] * int(draw.integers(1, 4)), LETTERS[bad] * int(draw.integers(1, 4))))
    pairs = [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in rows]
    judged = [{"prompt": p, "completion": (c, r)[i % 2], "label": i % 2 == 0} for i, (p, c, r) in enumerate(rows)]
    for name, records in (("pairs", pairs), ("judged", judged)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    ByteTokenizer.Config().build().save(path / "tokenizer.json")
    return path


def experiment(folder, modify, steps=4, data="pairs", **values):
    corpus = JsonLines.Config(files=(f"{data}.jsonl",), root=str(folder))
    model = llama(num_layers=2, input_dim=32, num_heads=2, num_kv_heads=1, hidden_dim=48, vocab_size=264)
    model.embedding.set(init_stddev=32**-0.5)
    cfg = Trainer.Config(
        model=model,
        data=TextSource.Config(corpus=corpus, sequence_length=32, tokenizer_file=str(folder / "tokenizer.json")),
        batch_size=8, steps=steps,
        learner=Learner.Config(schedule=Constant.Config(peak=5e-3)),
    )  # fmt: skip
    return compose(cfg, None, tuple(modify), tuple(f"{path}={value}" for path, value in values.items()))


def trained(composition, path, **options):
    """Returns the step events of a run."""
    Loop(composition, path, **options).execute()
    return [event for event in read_events(path / "events.jsonl") if event["event"] == "step"]


def metric(event, name):
    return event["metrics"][f"loss.{name}"]


@pytest.mark.parametrize(
    ("modify", "data"),
    [(["lora:rank=4", "dpo:beta=0.5"], "pairs"), (["dpo:beta=0.5"], "pairs"), (["simpo"], "pairs"),
     (["orpo:beta=1"], "pairs"), (["kto:beta=0.5"], "judged")],
)  # fmt: skip
def test_margins_rise(folder, tmp_path, modify, data):
    events = trained(experiment(folder, modify, steps=30, data=data), tmp_path / "run")
    margin = lambda event: metric(event, "chosen_reward") - metric(event, "rejected_reward")  # noqa: E731
    first, last = (np.mean([margin(e) for e in some]) for some in (events[:3], events[-3:]))
    assert last > first + 0.5
    assert np.mean([metric(e, "accuracy") for e in events[-3:]]) > 0.9
    assert events[-1]["loss"] < events[0]["loss"]
    if "dpo" in modify[-1]:
        # The policy begins as its reference, adapters or not.
        assert events[0]["loss"] == pytest.approx(np.log(2), rel=1e-5)
        assert metric(events[0], "margin") == pytest.approx(0.0, abs=1e-5)


def test_a_reward_model_learns_which_is_better_and_leaves_as_a_folder(folder, tmp_path):
    events = trained(experiment(folder, ["reward-model"], steps=30), tmp_path / "run")
    assert np.mean([metric(e, "accuracy") for e in events[-3:]]) > 0.9
    store = kn.component("model_stores", "huggingface")()
    store.save(tmp_path / "out", RunStore().load(tmp_path / "run"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]


def test_a_frozen_reference_is_in_checkpoints_and_not_in_exports(folder, tmp_path):
    modify = ["dpo:reference=frozen"]
    whole = trained(experiment(folder, modify), tmp_path / "whole")
    trained(experiment(folder, modify, **{"checkpoints.every_steps": 2}), tmp_path / "parts", steps=2)
    resumed = trained(experiment(folder, modify, **{"checkpoints.every_steps": 2}), tmp_path / "parts", steps=4)
    assert [e["loss"] for e in resumed] == [e["loss"] for e in whole]
    stored = RunStore().load(tmp_path / "whole")
    assert not any(path.startswith("loss.") for path in stored.params)
    # A run initialised from it has its parameters as the reference.
    events = trained(experiment(folder, modify, steps=1), tmp_path / "next", initial=tmp_path / "whole")
    assert events[0]["loss"] == pytest.approx(np.log(2), rel=1e-5)
    assert kn.open(tmp_path / "whole").params.keys() == kn.open(tmp_path / "whole").model.children.keys() - {"loss"}


@pytest.mark.parametrize("modify", [["lora:rank=2", "dpo"], ["dpo"], ["reward-model"]])
def test_eight_devices_and_microbatches_give_the_same_losses(folder, tmp_path, modify):
    plain = trained(experiment(folder, modify), tmp_path / "plain")
    parts = trained(experiment(folder, [*modify, "accumulate:microbatches=4"]), tmp_path / "parts")
    cfg = experiment(folder, modify).config.clone()
    wide = compose(cfg, "cpu-8", ('mesh:axes={"data":2,"fsdp":4}',))
    sharded = trained(wide, tmp_path / "wide")
    for other in (parts, sharded):
        np.testing.assert_allclose([e["loss"] for e in other], [e["loss"] for e in plain], rtol=2e-5)


def test_a_reference_in_columns_stands_for_a_frozen_copy(folder, tmp_path):
    """The sums of the first parameters, written into the records, stand for the copy."""
    start = experiment(folder, ["dpo"], steps=3)
    model, source = (
        start.workload().model,
        start.config.data.clone().set(shuffle=False, epochs=1, validation_one_in=0).build(),
    )
    params = start.workload().init().params
    own = {name: x for name, x in params.items() if name != "loss"}
    records = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    sums = {}
    for index in range(source.num_rows):
        row = source.row(index)
        batch = source.batch(**{n: None if f is None else row[n][None] for n, f in source.fields.items()})
        full = {**own, "loss": {"reference": {"model": own}}}
        emitted = kn.functional(model)(full, {}, batch, emit=("loss.segment_logprobs",))[1].emitted
        for number, piece in enumerate(source.pieces(index)):
            both = np.asarray(emitted["loss.segment_logprobs"])[0, 2 * number : 2 * number + 2]
            sums[json.dumps(source.columns(piece.document))] = both.tolist()
    for record in records:
        record["ref_chosen_logps"], record["ref_rejected_logps"] = sums[json.dumps(record)]
    (folder / "known.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    known = experiment(folder, ["dpo:reference=precomputed"], steps=3, data="known", **{"evaluation.every_steps": 100})
    events = trained(known, tmp_path / "known")
    assert events[0]["loss"] == pytest.approx(np.log(2), rel=1e-4)
    assert events[-1]["loss"] != events[0]["loss"]
    assert events[-1]["tokens"] > 8 * 4


def test_it_can_be_planned(folder):
    record = kn.plan(experiment(folder, ["dpo"]).config, on="cpu-1")
    assert record


def test_data_without_records_are_refused(folder):
    cfg = Trainer.Config(
        model=llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=64),
        data=RandomTokens.Config(vocab_size=64), batch_size=8, steps=1,
    )  # fmt: skip
    with pytest.raises(KanawaError, match="preferences are read from records, and the data are RandomTokens"):
        compose(cfg, None, ("dpo",), ())
