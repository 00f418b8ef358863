"""Preferences end to end: margins and rewards that rise, references, eight devices, microbatches, exports, refusals."""

import json
import shutil

import kanawa as kn
import numpy as np
import pytest
from kanawa.cli.main import main
from kanawa.composition.experiment import compose
from kanawa.errors import KanawaError
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.other_data import on_other_data
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import JsonLines
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.rollouts.reward_model import RewardModel
from kanawa_runtime.rollouts.rewards import Rollout
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
    [(["lora:rank=4", "dpo:beta=0.5"], "pairs"), (["simpo"], "pairs"), (["kto:beta=0.5"], "judged"),
     pytest.param(["dpo:beta=0.5"], "pairs", marks=pytest.mark.nightly),
     pytest.param(["orpo:beta=1"], "pairs", marks=pytest.mark.nightly)],
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
    rollouts, model = [], RewardModel(str(tmp_path / "run"), ByteTokenizer.Config().build())
    tokenizer = ByteTokenizer.Config().build()
    for pair in [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]:
        prompt = (tokenizer.bos_id, *tokenizer.encode(pair["prompt"]).tolist())
        for side in ("chosen", "rejected"):
            said = (*tokenizer.encode(pair[side]).tolist(), tokenizer.eos_id)
            rollouts.append(Rollout(prompt_ids=prompt, completion_ids=said, answer_ids=(), finish_reason="stop"))
    rated = model.rate(rollouts).reshape(-1, 2)
    assert np.mean(rated[:, 0] > rated[:, 1]) > 0.9
    np.testing.assert_allclose(model.rate(rollouts[:3]), rated.reshape(-1)[:3], rtol=1e-5)
    grpo = f"grpo:reward_model={tmp_path / 'run'},group_size=4,new_tokens=4"
    (event,) = trained(experiment(folder, [grpo], steps=1, **{"rollouts.logged_completions": 8}), tmp_path / "policy")
    (shown,) = (e for e in read_events(tmp_path / "policy" / "events.jsonl") if e["event"] == "completions")
    rewards = [row["rewards"]["reward_model"] for row in shown["rows"]]
    assert event["reward"] == pytest.approx(np.mean(rewards), rel=1e-4) and len(set(rewards)) > 1
    with pytest.raises(KanawaError, match=r"first holds no reward model \(it gives 264 numbers a token\)"):
        trained(experiment(folder, [], steps=1, **{"data.corpus.field": "prompt"}), tmp_path / "first")
        RewardModel(str(tmp_path / "first"), None).rate(rollouts[:1])
    with pytest.raises(KanawaError, match=r"another vocabulary than the policy's"):
        RewardModel(str(tmp_path / "run"), BytePairTokenizer.Config(vocab_size=300).build(state={"merges": []}))
    store = kn.component("model_stores", "huggingface")()
    store.save(tmp_path / "out", RunStore().load(tmp_path / "run"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]


@pytest.mark.parametrize("before", [[], pytest.param(["lora:rank=2"], marks=pytest.mark.nightly)])
def test_a_reward_model_begins_with_a_language_model_and_goes_on_from_its_own_kind(folder, tmp_path, before):
    trained(experiment(folder, [], steps=1, **{"data.corpus.field": "prompt"}), tmp_path / "first")
    modify = [*before, "reward-model"]
    (event,) = trained(experiment(folder, modify, steps=1), tmp_path / "reward", initial=tmp_path / "first")
    # Only the head is new, and it begins at zero.
    assert event["loss"] == pytest.approx(np.log(2), rel=1e-6)
    (started,) = (e for e in read_events(tmp_path / "reward" / "events.jsonl") if e["event"] == "initialised_from")
    assert "head.kernel" in json.dumps(started)
    trained(experiment(folder, modify, steps=9), tmp_path / "longer", initial=tmp_path / "first")
    (event,) = trained(experiment(folder, modify, steps=1), tmp_path / "next", initial=tmp_path / "longer")
    assert event["loss"] < np.log(2) - 1e-3


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


@pytest.mark.parametrize(
    "modify",
    [["dpo"], *(pytest.param(m, marks=pytest.mark.nightly) for m in (["lora:rank=2", "dpo"], ["reward-model"]))],
)
def test_microbatches_on_eight_devices_give_the_same_losses(folder, tmp_path, modify):
    plain = trained(experiment(folder, modify), tmp_path / "plain")
    cfg = experiment(folder, [*modify, "accumulate:microbatches=2"]).config.clone()
    both = trained(compose(cfg, "cpu-8", ('mesh:axes={"data":2,"fsdp":2,"tensor":2}',)), tmp_path / "both")
    np.testing.assert_allclose([e["loss"] for e in both], [e["loss"] for e in plain], rtol=2e-5)


@pytest.mark.parametrize(
    ("modify", "data"), [("dpo", "pairs"), pytest.param("kto", "judged", marks=pytest.mark.nightly)]
)
def test_a_reference_that_was_written_stands_for_a_frozen_copy(folder, tmp_path, modify, data, capsys):
    first = tmp_path / "first"
    trained(experiment(folder, [], data=data, steps=1, **{"data.corpus.field": "prompt"}), first)
    known = tmp_path / "known.jsonl"
    shutil.copy(folder / "tokenizer.json", tmp_path)
    asked = ["data", "reference", str(first), "--data", str(folder / f"{data}.jsonl"), "--modify", modify]
    assert main([*asked, "--out", str(known), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 96
    options = {"evaluation.every_steps": 100, "data.validation_one_in": 0, "data.shuffle": False}
    frozen = trained(experiment(folder, [modify], steps=3, data=data, **options), tmp_path / "frozen", initial=first)
    precomputed = experiment(tmp_path, [f"{modify}:reference=precomputed,source={first}"], 3, "known", **options)
    events = trained(precomputed, tmp_path / "known", initial=first)
    np.testing.assert_allclose([e["loss"] for e in events], [e["loss"] for e in frozen], rtol=1e-5)
    records = [json.loads(line) for line in known.read_text().splitlines()]
    other = {"prompt": "z"} if modify == "dpo" else {"completion": "zz"}
    for change, says in (
        (other, "the record, its template or its tokenizer isn't what"),
        ({"ref_digest": "0123:" + records[40]["ref_digest"].partition(":")[2]}, "are of the model 0123, expected"),
    ):
        lines = [json.dumps(record | change if number == 40 else record) for number, record in enumerate(records)]
        (tmp_path / "changed.jsonl").write_text("\n".join(lines))
        changed = experiment(tmp_path, [f"{modify}:reference=precomputed,source={first}"], 3, "changed", **options)
        source = changed.config.data.build()
        with pytest.raises(KanawaError, match=says):
            [source.row(index) for index in range(40)]


@pytest.mark.parametrize(
    ("modify", "data"),
    [("dpo", "pairs"), *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("kto", "judged"),
     ("reward-model", "pairs")))],
)  # fmt: skip
def test_files_are_mixed_by_weight_and_a_resumed_run_goes_on_where_it_was(folder, tmp_path, modify, data):
    lines = (folder / f"{data}.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("a", lines[:60]), ("b", lines[60:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    mixed = f"{tmp_path}/a.jsonl*0.7,{tmp_path}/b.jsonl*0.3"
    plain = experiment(folder, []).config
    options = ("checkpoints.every_steps=2", "data.block_rows=8", "data.when_exhausted=drop")
    composed = compose(on_other_data(plain, mixed, folder / "tokenizer.json"), None, (modify,), options)
    whole = trained(composed, tmp_path / "whole", steps=4)
    trained(composed, tmp_path / "parts", steps=2)
    assert [e["loss"] for e in trained(composed, tmp_path / "parts", steps=4)] == [e["loss"] for e in whole]
    for event in whole:
        # Of a preference the weight is its pairs.
        losses, pairs = event["loss_by_source"], event["tokens_by_source"]
        mean = sum(losses[name] * pairs[name] for name in losses) / sum(pairs.values())
        assert mean == pytest.approx(event["loss"], rel=1e-5)
    (seen,) = (e for e in read_events(tmp_path / "whole" / "events.jsonl") if e["event"] == "data")
    assert seen.keys() >= {"a", "b"}


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
