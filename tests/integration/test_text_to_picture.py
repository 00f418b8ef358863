"""Pictures of texts from commands: an encoder that learns along, or a frozen one of another run, in run and export."""

import json

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.main import main
from kanawa.contracts import StoredModel
from kanawa.errors import ConfigError, UsageError
from kanawa_layers.recipes.autoencoder_kl import autoencoder_kl
from kanawa_layers.recipes.clip import two_towers
from kanawa_layers.recipes.sd3 import sd3
from kanawa_layers.recipes.t5 import t5
from kanawa_runtime.data.images.decode import decoded
from kanawa_runtime.data.images.drawn_captions import DrawnCaptions
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.media import media_of, png_bytes
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.train.loop import Loop

LENGTH = 12
STEPS = 4


def small(modifiers=(), on="cpu", data=None):
    """Returns an experiment on captions, with a model that compiles in a moment."""
    cfg = kn.compose("mmdit-tiny", overrides=["batch_size=8"]).config.clone()
    reader = cfg.model.encoder.clone().set(length=LENGTH, input_dim=16)
    reader.positions.set(max_length=LENGTH)
    cfg.set(
        model=sd3(
            num_layers=2, num_heads=2, head_dim=8, num_channels=3, image_size=8, text_dim=16, pooled_dim=16,
            text_length=LENGTH, max_size=4, encoder=reader, shift=1.0,
        )
    )  # fmt: skip
    cfg.model.sampler.set(num_steps=2)
    cfg.set(data=DrawnCaptions.Config(height=8, width=8, sequence_length=LENGTH, pictures=64, held_out_pictures=8))
    cfg.checkpoints.set(every_steps=2)
    cfg.evaluation.set(every_steps=2)
    return kn.compose(cfg, on, modifiers, overrides=[f"steps={STEPS}"], data=data)


def losses(composition, run, steps=STEPS):
    Loop(composition, run, steps=steps).execute()
    return list({e["step"]: e["loss"] for e in read_events(run / "events.jsonl") if e["event"] == "step"}.values())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert len(losses(small(), path)) == STEPS
    return path


def encoder_of(path):
    opened = kn.open(path)
    return {name: np.asarray(leaf) for name, leaf in flatten_paths(opened.params["encoder"]).items()}


def test_pictures_of_texts_are_written_by_the_text_and_alike_each_time(run, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["a red star", "--pictures-to", str(out), "--count", "2", "--seed", "5", "--json"]
    assert main(["generate", str(run), *asked]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["label"], line["seed"]) for line in lines] == [("a red star", 5), ("a red star", 6)]
    assert sorted(path.name for path in out.iterdir()) == ["0000-a-red-star.png", "0001-a-red-star.png"]
    made = kn.open(run).pictures(["a ring", "a red star"], seed=5)
    np.testing.assert_array_equal(np.array(decoded((out / "0001-a-red-star.png").read_bytes(), 3, 100)), made[1].pixels)
    # A few steps teach little of what a text means: guidance says it loudly.
    ring, star = (kn.open(run).pictures(text, seed=5, guidance=300.0)[0].pixels for text in ("a ring", "a red star"))
    assert np.abs(ring.astype(int) - star).max() > 3


def test_what_is_no_wish_is_refused_with_what_is(run, tmp_path, capsys):
    opened = kn.open(run)
    with pytest.raises(UsageError, match="makes pictures of texts; say of which"):
        opened.pictures()
    with pytest.raises(UsageError, match=f"the text has 16 tokens, and the model reads {LENGTH}; shorten it"):
        opened.pictures("a large circle")
    both = ["generate", str(run), "a", "--label", "b", "--pictures-to", str(tmp_path / "x")]
    assert main(both) == 2
    assert "--label and texts were both given" in capsys.readouterr().err


def test_a_run_cut_short_goes_on_bit_for_bit_and_reports_pictures_of_held_out_texts(run, tmp_path):
    cut = tmp_path / "cut"
    losses(small(), cut, steps=3)
    whole = [event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "step"]
    assert losses(small(), cut) == whole
    sample = [event for event in read_events(run / "events.jsonl") if event["event"] == "sample"][-1]
    texts = {
        kn.open(run).opened().trainer.source.held_out().shown(row).text
        for row in map(kn.open(run).opened().trainer.source.held_out().row, range(8))
    }
    assert {medium.text for medium in media_of(sample)} <= texts


@pytest.mark.parametrize(
    "modifiers",
    [
        pytest.param(["remat:policy=full"], marks=pytest.mark.nightly, id="remat"),
        pytest.param(['mesh:axes={"data":2,"fsdp":4}'], marks=pytest.mark.nightly, id="mesh"),
    ],
)
def test_eight_devices_and_remat_give_the_same_losses(run, tmp_path, modifiers):
    on = "cpu-8" if modifiers[0].startswith("mesh") else "cpu"
    other = losses(small(modifiers, on=on), tmp_path / "other", steps=2)
    whole = [event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "step"]
    np.testing.assert_allclose(other, whole[:2], rtol=2e-5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Returns runs of a CLIP and of a T5 with a tokenizer of bytes, as imports write them."""
    root = tmp_path_factory.mktemp("folders")
    towers = two_towers(
        output_dim=12, num_layers=1, input_dim=16, num_heads=2, patch_size=4, image_size=8, text_layers=2, text_dim=16,
        text_heads=2, vocab_size=259, max_length=LENGTH, end_id=258,
    )  # fmt: skip
    sizes = {"num_layers": 2, "input_dim": 16, "num_heads": 2, "hidden_dim": 24, "head_dim": 8, "vocab_size": 300}
    vae = autoencoder_kl(widths=(8, 8), depth=1, latent_dim=4, num_groups=2, image_size=16)
    for name, cfg in (("clip", towers), ("t5", t5(**sizes)), ("vae", vae)):
        built = cfg.clone().build()
        params = {
            path: np.asarray(leaf) for path, leaf in flatten_paths(kn.initialize(built, jax.random.key(1))).items()
        }
        tokenizer = DrawnCaptions.Config().build().tokenizer
        RunStore().save(root / name, StoredModel(cfg, params, files=tokenizer.folder_files()))
    return root


@pytest.mark.parametrize("kind", ["clip", pytest.param("t5", marks=pytest.mark.nightly)])
def test_a_frozen_encoder_of_a_folder_travels_with_the_run(folders, kind, tmp_path, capsys):
    composed = small([f"text-encoder:folder={folders / kind},length={LENGTH}"])
    run = tmp_path / "run"
    assert np.isfinite(losses(composed, run, steps=2)).all()
    assert any(event["event"] == "part_from" for event in read_events(run / "events.jsonl"))
    stored = RunStore().load(folders / kind).params
    part = "text." if kind == "clip" else ""
    top = "tower." if kind == "clip" else ""
    kept = encoder_of(run)
    assert kept
    for name, leaf in kept.items():
        np.testing.assert_array_equal(leaf, stored[part + name.removeprefix(top)], err_msg=name)
    (picture,) = kn.open(run).pictures("a red star", seed=1)
    assert picture.pixels.shape == (8, 8, 3)
    check_export(run, tmp_path / "hf")


def test_an_encoder_that_learned_along_travels_with_the_export(run, tmp_path):
    check_export(run, tmp_path / "hf")


def test_data_are_read_for_the_encoder_and_the_autoencoder_that_modifiers_bring(folders, tmp_path, monkeypatch):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png_bytes(np.full((9, 11, 3), 60 * number, np.uint8)))
        (tmp_path / f"{number}.txt").write_text("a grey square")
    stand_in = kn.compose("sd3-medium").config.clone()
    stand_in.set(model=sd3(num_layers=2, num_heads=2, head_dim=8, num_channels=4, image_size=8, max_size=4))
    parts = [f"{name}:folder={folders / kind}" for name, kind in (("text-encoder", "clip"), ("autoencoder", "vae"))]
    # `flip` is for the data that are named, wherever it stands among the modifiers.
    composed = kn.compose(stand_in, modifiers=["flip", *parts], data=str(tmp_path))
    data = composed.config.data
    assert (data.height, data.width, data.channels, data.sequence_length) == (16, 16, 3, LENGTH)
    assert len(data.augmentations) == 1
    assert data.tokenizer_file == composed.config.model.encoder.tokenizer != ""
    assert data.build().row(0)["images"].shape == (16, 16, 3)
    with pytest.raises(ConfigError, match="learns from latents of 4 channels, not from pictures; name the autoencoder"):
        kn.compose(stand_in, modifiers=parts[:1], data=str(tmp_path))
    with pytest.raises(UsageError, match="name a source of those with"):
        kn.compose(stand_in, modifiers=parts)


def check_export(run, folder):
    """Exports a run for `diffusers`, and reads it again: with its encoder, its numbers and its tokenizer."""
    assert main(["convert", "to-hf", str(run), str(folder)]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["_class_name"] == "SD3Transformer2DModel" and config["text_encoder"]["length"] == LENGTH
    opened, again = kn.open(run), kn.open(folder)
    ours, theirs = flatten_paths(opened.params), flatten_paths(again.params)
    assert ours.keys() == theirs.keys()
    for name, leaf in ours.items():
        np.testing.assert_array_equal(theirs[name], leaf, err_msg=name)
    plain = type(opened.model.config.encoder)
    assert type(again.model.config.encoder) is plain
    read, expected = (
        kn.functional(one.model.encoder)(one.params["encoder"], {}, np.array([[97, 98, 258] + [-1] * (LENGTH - 3)]))[0]
        for one in (again, opened)
    )
    for one, other in zip(read, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.pictures("a star", steps=2)[0].pixels.shape == (8, 8, 3)
