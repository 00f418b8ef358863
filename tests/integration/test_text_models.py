"""From a Hugging Face folder of an encoder and labelled texts to a classifier, trained, evaluated and exported."""

import json

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.cli.main import main
from kanawa.contracts import StoredModel
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.recipes.bert import bert
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.model_store import RunStore
from words_of_bert import WORDS, tokenizer

LENGTHS = ("data.sequence_length=16", "batch_size=8", "learner.schedule.peak=3e-3", "data.validation_one_in=4")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with `bert`, random, and records."""
    folder = tmp_path_factory.mktemp("text")
    sizes = {"num_layers": 1, "input_dim": 32, "num_heads": 2, "vocab_size": 320, "max_length": 32}
    cfg = bert(**sizes, pooler=False, head=True)
    params = flatten_paths(kn.initialize(cfg.build(), jax.random.key(0)))
    HuggingFaceStore().save(
        folder / "bert", StoredModel(cfg, {path: np.asarray(leaf) for path, leaf in params.items()})
    )
    (folder / "bert" / "tokenizer.json").write_text(tokenizer())
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    chance = np.random.default_rng(0)
    texts, tags = [], []
    for _ in range(64):
        said = [str(word) for word in chance.choice(WORDS[5:12], 5)]
        word = str(chance.choice(WORDS[12:]))
        said.insert(int(chance.integers(6)), word)
        label = "good" if word in ("good", "fine") else "bad"
        texts.append({"text": " ".join(said), "label": label})
        tags.append({"tokens": said, "labels": [label if each == word else "none" for each in said]})
    for name, records in (("texts", texts), ("tags", tags)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def trained(work, run, modify, data, steps=40):
    sets = [part for text in (*LENGTHS, f"evaluation.every_steps={steps}") for part in ("--set", text)]
    asked = ["train", str(work / "bert"), "--modify", modify, "--data", str(work / data), "--run", str(work / run)]
    assert main([*asked, "--steps", str(steps), *sets]) == 0
    return list(read_events(work / run / "events.jsonl"))


@pytest.mark.parametrize(
    ("modify", "data", "kind"),
    [
        ("classify:labels=[bad,good]", "texts.jsonl", "BertForSequenceClassification"),
        pytest.param(
            "classify:labels=[none,bad,good],of_tokens=true",
            "tags.jsonl",
            "BertForTokenClassification",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_classifier_is_trained_evaluated_exported_and_read_back(work, modify, data, kind, capsys):
    events = trained(work, kind, modify, data)
    begun = next(event for event in events if event["event"] == "initialised_from")
    assert "head.kernel" in begun["fresh"] and "embedding.weight" in begun["taken"]
    capsys.readouterr()
    assert main(["eval", str(work / kind), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] > 0.9
    stored = RunStore().load(work / kind)
    HuggingFaceStore().save(work / f"{kind}-hf", stored)
    config = json.loads((work / f"{kind}-hf" / "config.json").read_text())
    assert config["architectures"] == [kind]
    assert list(config["id2label"].values()) == list(stored.config.head.labels)
    back = HuggingFaceStore().load(work / f"{kind}-hf")
    assert back.config == stored.config
    ids = np.array([[2, 5, 12, 3]], np.int32)
    logits = [
        np.asarray(kn.functional(model.config.build(), "predict")(unflatten_paths(model.params), {}, ids)[0])
        for model in (stored, back)
    ]
    np.testing.assert_array_equal(*logits)


def test_texts_that_belong_together_get_near_vectors(work, capsys):
    """Each query says in one half of the words what its positive says in the other half."""
    chance = np.random.default_rng(1)
    lines = []
    for _ in range(160):
        left, right = (int(number) for number in chance.integers(0, 4, 2))
        said = [WORDS[5 + left], WORDS[5 + right]], [WORDS[9 + left], WORDS[9 + right]]
        lines.append({"query": " ".join(said[0]), "positive": " ".join(said[1])})
    (work / "near.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    events = trained(work, "near", "embed", "near.jsonl")
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < 0.8 * losses[0]
    assert not [path for path in RunStore().load(work / "near").params if path.startswith(("head", "transform"))]
    capsys.readouterr()
    assert main(["eval", str(work / "near"), "--json"]) == 0
    # Of 16 pairs a batch, some are alike.
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] > 0.3
