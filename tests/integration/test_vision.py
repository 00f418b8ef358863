"""Pictures from a folder to a trained, evaluated, exported classifier; exact after a kill and on eight devices."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.main import main
from kanawa.contracts import StoredModel
from kanawa.errors import CompositionError, ConfigError, UsageError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.recipes.clip import two_towers
from kanawa_layers.recipes.vit import vit
from kanawa_runtime.data.images.augment import Flip, RandomCrop
from kanawa_runtime.data.images.drawn import SHAPES, drawn
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from words_of_bert import WORDS, tokenizer

STEPS = 8
NAMES = {"ring": "round", "star": "pointed"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for number, shape in enumerate(["ring", "star"] * 15):
        (root / NAMES[shape]).mkdir(exist_ok=True)
        drawn(shape, 20, 24, Draws(number)).save(root / NAMES[shape] / f"{number:02d}.png")
    return root


def small(folder, modifiers=("flip", "random-crop", "color-jitter"), on="cpu", options="", patch_size=8):
    """Returns an experiment on the folder, with a model that compiles in a moment."""
    cfg = kn.compose("vit-tiny", overrides=["batch_size=8"]).config.clone()
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "image_size": 16, "num_classes": 2}
    cfg.set(model=vit(**sizes, patch_size=patch_size), learner=Learner.Config())
    cfg.checkpoints.set(every_steps=4)
    return kn.compose(cfg, on, modifiers, overrides=[f"steps={STEPS}"], data=f"{folder}:validation_one_in=4{options}")


def losses(composition, run, steps=STEPS):
    Loop(composition, run, steps=steps).execute()
    # Of a step that was taken again, the last record counts.
    return list({e["step"]: e["loss"] for e in read_events(run / "events.jsonl") if e["event"] == "step"}.values())


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert len(losses(small(folder), path)) == STEPS
    return path


def test_a_run_is_evaluated_reported_and_exported_with_the_names_of_its_classes(folder, run, tmp_path, capsys):
    evaluations = [event for event in read_events(run / "events.jsonl") if event["event"] == "eval"]
    scores = kn.open(run).evaluate().scores
    assert (scores["unit"], scores["tokens"]) == ("images", evaluations[-1]["tokens"]) and scores["tokens"] > 1
    whole = kn.open(run).evaluate(data=str(folder)).scores
    assert whole["tokens"] == 30, "what is named is evaluated whole, held-out pictures too"
    assert scores["metrics"] == evaluations[-1]["metrics"] and 0 <= scores["metrics"]["accuracy"] <= 1
    program = next(event for event in read_events(run / "events.jsonl") if event["event"] == "program")
    assert program["model_flops_per_step"] == 3 * 8 * kn.open(run).model.flops_per_row({"images": (16, 16, 3)})
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    text = page.read_text()
    assert "images a second" in text and "Accuracy" in text and "nats a token" not in text
    assert main(["convert", "to-hf", str(run), str(tmp_path / "hf")]) == 0
    exported = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert exported["id2label"] == {"0": "pointed", "1": "round"} and exported["image_size"] == 16


def test_a_run_cut_short_goes_on_bit_for_bit(folder, run, tmp_path):
    cut = tmp_path / "cut"
    losses(small(folder), cut, steps=5)
    assert losses(small(folder), cut) == [e["loss"] for e in read_events(run / "events.jsonl") if e["event"] == "step"]


@pytest.mark.nightly
def test_a_killed_process_goes_on_bit_for_bit(folder, run, tmp_path):
    # The config as Python: a name of the catalog would need a package.
    words = "import sys, test_vision as t; from pathlib import Path; "
    words += "t.losses(t.small(Path(sys.argv[1])), Path(sys.argv[2]))"
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
    cut = tmp_path / "cut"
    process = subprocess.Popen([sys.executable, "-c", words, str(folder), str(cut)], env=environment)
    try:
        end = time.monotonic() + 240
        while process.poll() is None and not list(cut.glob("checkpoints/4*")) and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert losses(small(folder), cut) == [e["loss"] for e in read_events(run / "events.jsonl") if e["event"] == "step"]


def test_eight_devices_and_remat_give_the_same_losses(folder, run, tmp_path):
    plain = [event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "step"]
    modifiers = ["flip", "random-crop", "color-jitter", "remat:policy=full"]
    wide = small(folder, [*modifiers, 'mesh:axes={"data":2,"fsdp":4}'], on="cpu-8")
    np.testing.assert_allclose(losses(wide, tmp_path / "wide", steps=3), plain[:3], rtol=2e-5)


def test_pictures_keep_their_proportions_on_one_device_and_on_eight(folder, tmp_path):
    found = {}
    for on, modifiers in (("cpu", ()), ("cpu-8", ('mesh:axes={"data":4,"fsdp":2}',))):
        composed = small(folder, modifiers, on=on, options=",own_proportions=true", patch_size=4)
        assert tuple(composed.config.data.build().row(0)["grids"]) == (3, 4)
        found[on] = losses(composed, tmp_path / on, steps=2)
    np.testing.assert_allclose(found["cpu-8"], found["cpu"], rtol=2e-5)
    with pytest.raises(ConfigError, match="own_proportions is set, and the model takes pictures of one size"):
        kn.compose("resnet-tiny", data=f"{folder}:own_proportions=true")


def test_lora_trains_its_factors_alone_on_top_of_a_run(folder, run, tmp_path):
    Loop(small(folder, ["lora:rank=2"]), tmp_path / "tuned", steps=2, initial=run).execute()
    events = read_events(tmp_path / "tuned" / "events.jsonl")
    program = next(event for event in events if event["event"] == "program")
    assert 0 < program["trained_parameters"] < program["parameters"] / 4


def test_a_linear_probe_trains_a_new_head_alone(folder, run, tmp_path):
    cfg = small(folder, ["linear-probe"])
    Loop(cfg, tmp_path / "probe", steps=2, initial=run).execute()
    before, after = (kn.open(path).params for path in (run, tmp_path / "probe"))
    before, after = flatten_paths(before), flatten_paths(after)
    changed = {path for path in after if not np.array_equal(before[path], after[path])}
    assert changed == {"head.weight", "head.bias"}
    events = read_events(tmp_path / "probe" / "events.jsonl")
    begun = next(event for event in events if event["event"] == "initialised_from")
    assert set(begun["fresh"]) == changed and set(begun["left"]) == changed
    with pytest.raises(ConfigError, match="linear-probe: .*Config has no head to train alone"):
        kn.compose("clip-tiny", modifiers=["linear-probe"])


def test_data_names_a_folder_and_the_model_gets_its_classes(folder):
    cfg = kn.compose("vit-tiny", data=str(folder), modifiers=["random-crop:scale=0.5"]).config
    assert cfg.data.class_names == cfg.model.class_names == ("pointed", "round")
    assert (cfg.model.num_classes, cfg.data.height) == (2, 32)
    # A model that knows the names of its classes keeps their order, such as one that is trained further.
    known = kn.compose(cfg.clone().set(model=cfg.model.clone().set(class_names=("round", "pointed"))), data=str(folder))
    assert known.config.data.class_names == ("round", "pointed")
    assert [type(one) for one in cfg.data.augmentations] == [Flip.Config, RandomCrop.Config]
    large = kn.compose("vit-b-16", data=f"{folder}:validation_one_in=5").config
    assert (large.data.height, large.data.validation_one_in, large.model.num_classes) == (224, 5, 2)


def test_what_does_not_fit_is_refused_before_training(folder):
    with pytest.raises(CompositionError, match=r"images of \[16, 32, 3\], and the model takes \[32, 32, 3\]"):
        kn.compose("vit-tiny", overrides=["data.height=16"])
    with pytest.raises(CompositionError, match="data has 7 classes, but model.num_classes is 3; set it to 7"):
        kn.compose("vit-tiny", overrides=["model.num_classes=3", "model.class_names=[]"])
    names = str(sorted(SHAPES, reverse=True)).replace("'", '"')
    with pytest.raises(CompositionError, match="class 0 is 'triangle' of the model and 'circle' of the data"):
        kn.compose("vit-tiny", overrides=[f"model.class_names={names}"])
    with pytest.raises(ConfigError, match="no data of pictures to change"):
        kn.compose("quickstart", modifiers=["flip"])
    with pytest.raises(UsageError, match="rows of ImageBatch come from one folder"):
        kn.compose("vit-tiny", data=f"{folder}/round,{folder}/pointed")


@pytest.fixture(scope="module")
def pairs(folder, tmp_path_factory):
    """A table of the folder's pictures with captions."""
    table = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"image": str(path), "text": f"a {path.parent.name} shape"} for path in sorted(folder.glob("*/*"))]
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return table


def two_small_towers(pairs, on="cpu"):
    cfg = kn.compose("clip-tiny", overrides=["batch_size=8"]).config.clone()
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "image_size": 16, "patch_size": 8, "output_dim": 8}
    texts = {"text_layers": 1, "text_dim": 16, "text_heads": 2, "vocab_size": 259, "max_length": 24, "end_id": 258}
    cfg.set(model=two_towers(**sizes, **texts), learner=Learner.Config())
    return kn.compose(cfg, on, overrides=["steps=4"], data=f"{pairs}:validation_one_in=4")


def test_pairs_train_two_towers_and_classes_are_named_without_training_for_them(folder, pairs, tmp_path, capsys):
    found = losses(two_small_towers(pairs), tmp_path / "run", 4)
    assert len(found) == 4 and all(np.isfinite(found))
    scores = kn.open(tmp_path / "run").evaluate(data=str(folder)).scores
    assert (scores["tokens"], scores["unit"]) == (30, "pairs") and 0 <= scores["metrics"]["zero_shot_accuracy"] <= 1
    assert main(["data", "inspect", "clip-tiny", "--rows", "1", "--sample", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["text"].startswith("a ")


@pytest.mark.nightly
def test_eight_devices_learn_pairs_and_name_classes_alike(folder, pairs, tmp_path):
    found = {}
    for on in ("cpu", "cpu-8"):
        found[on] = losses(two_small_towers(pairs, on), tmp_path / on, 4)
        found[on].append(
            kn.open(tmp_path / on, on=on).evaluate(data=str(folder)).scores["metrics"]["zero_shot_accuracy"]
        )
    np.testing.assert_allclose(found["cpu-8"], found["cpu"], rtol=1e-4)


def test_a_folder_of_two_towers_reads_pairs_by_its_own_tokenizer(pairs, tmp_path):
    end = WORDS.index("[SEP]")
    texts = {"text_layers": 1, "text_dim": 16, "text_heads": 2, "vocab_size": 320, "max_length": 12, "end_id": end}
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "image_size": 16, "patch_size": 8, "output_dim": 8}
    cfg = two_towers(**sizes, **texts)
    params = flatten_paths(kn.initialize(cfg.build(), jax.random.key(0)))
    stored = StoredModel(cfg, {path: np.asarray(leaf) for path, leaf in params.items()})
    HuggingFaceStore().save(tmp_path / "clip", stored)
    (tmp_path / "clip" / "tokenizer.json").write_text(tokenizer())
    (tmp_path / "clip" / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "eos_token": "[SEP]"}))
    source = kn.compose(str(tmp_path / "clip"), data=str(pairs)).config.data.build()
    ids = source.row(0)["input_ids"]
    assert ids.shape == (12,) and ids[0] == WORDS.index("[CLS]") and end in ids


def test_texts_of_another_tokenizer_are_refused_before_training(pairs):
    with pytest.raises(CompositionError, match="model.text.end_id is 49407, and texts of the data end with"):
        kn.compose("clip-vit-b-32", data=str(pairs))


def test_inspection_shows_pictures_classes_and_the_numbers_of_a_norm(folder, capsys):
    assert main(["data", "inspect", "vit-tiny", "--data", str(folder), "--rows", "1", "--sample", "28"]) == 0
    out = capsys.readouterr().out
    assert "images           uint8 [32, 32, 3]" in out and "round " in out
    drawn_lines = [line for line in out.splitlines() if len(line) == 32 and set(line) <= set(" .:-=+*#%@")]
    assert len(drawn_lines) == 16 and len(set("".join(drawn_lines))) > 1
    assert main(["data", "inspect", "vit-tiny", "--rows", "1", "--sample", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["classes"].values()) == 8 and 0 < found["channel_stddevs"]["images"][0] < 0.5
