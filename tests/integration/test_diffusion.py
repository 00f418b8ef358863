"""Diffusion from a folder of pictures to pictures: exact after a cut and on eight devices, reported, exported."""

import json

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.cli.main import main
from kanawa.errors import KanawaError, UsageError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.recipes.dit import dit
from kanawa_runtime.data.images.decode import decoded
from kanawa_runtime.data.images.drawn import drawn
from kanawa_runtime.data.images.drawn_digits import DrawnDigits
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.moving_average import MovingAverage
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.runs.media import MOST_BYTES, Medium, as_json, media_of, png
from kanawa_runtime.train.loop import Loop

STEPS = 6
NAMES = {"ring": "round", "star": "pointed"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for number, shape in enumerate(["ring", "star"] * 15):
        (root / NAMES[shape]).mkdir(exist_ok=True)
        drawn(shape, 20, 24, Draws(number)).save(root / NAMES[shape] / f"{number:02d}.png")
    return root


def small(folder, modifiers=(), on="cpu"):
    """Returns an experiment on the folder, with a model that compiles in a moment."""
    cfg = kn.compose("dit-tiny", overrides=["batch_size=8"]).config.clone()
    sizes = {"num_layers": 2, "input_dim": 16, "num_heads": 2, "image_size": 8, "num_channels": 3, "num_classes": 2}
    cfg.set(model=dit(**sizes, objective=FlowMatching.Config()))
    cfg.model.sampler.set(num_steps=3)
    cfg.set(
        learner=Learner.Config(
            schedule=Constant.Config(peak=1e-2), average=MovingAverage.Config(decay=0.9, others=(0.1,))
        )
    )
    cfg.checkpoints.set(every_steps=3)
    cfg.evaluation.set(every_steps=3)
    return kn.compose(cfg, on, modifiers, overrides=[f"steps={STEPS}"], data=f"{folder}:validation_one_in=4")


def losses(composition, run, steps=STEPS):
    Loop(composition, run, steps=steps).execute()
    # Of a step that was taken again, the last record counts.
    return list({e["step"]: e["loss"] for e in read_events(run / "events.jsonl") if e["event"] == "step"}.values())


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert len(losses(small(folder), path)) == STEPS
    return path


def steps_of(run):
    return [event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "step"]


# What reads texts is cut short at every change; see test_text_to_picture.py.
@pytest.mark.nightly
def test_a_run_cut_short_goes_on_bit_for_bit(folder, run, tmp_path):
    cut = tmp_path / "cut"
    losses(small(folder), cut, steps=4)
    assert losses(small(folder), cut) == steps_of(run)
    ours, theirs = (kn.open(path).pictures(seed=3) for path in (cut, run))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.pixels, other.pixels)


@pytest.mark.parametrize("modifiers", [["remat:policy=full"], ['mesh:axes={"data":2,"fsdp":4}']], ids=["remat", "mesh"])
def test_eight_devices_and_remat_give_the_same_losses(folder, run, tmp_path, modifiers):
    on = "cpu-8" if modifiers[0].startswith("mesh") else "cpu"
    other = losses(small(folder, modifiers, on=on), tmp_path / "other", steps=3)
    np.testing.assert_allclose(other, steps_of(run)[:3], rtol=2e-5)


def test_modifiers_reach_blocks_of_diffusion(folder, run, tmp_path):
    changed = small(folder, ["norm:kind=rms-norm", "moe:num_experts=2,top_k=1"])
    before, after = (each.config.model.denoiser.stack.layer for each in (small(folder), changed))
    assert type(after.attention_norm) is not type(before.attention_norm)
    assert type(after.feed_forward) is not type(before.feed_forward)
    Loop(small(folder, ["lora:rank=2"]), tmp_path / "tuned", steps=1, initial=run).execute()
    events = read_events(tmp_path / "tuned" / "events.jsonl")
    program = next(event for event in events if event["event"] == "program")
    assert 0 < program["trained_parameters"] < program["parameters"] / 2


@pytest.mark.nightly
def test_a_mixture_of_experts_trains_in_blocks_of_diffusion(folder, tmp_path):
    changed = small(folder, ["norm:kind=rms-norm", "moe:num_experts=2,top_k=1"])
    assert np.isfinite(losses(changed, tmp_path / "changed", steps=1)).all()


def test_what_is_sampled_is_an_average_of_the_parameters(run, tmp_path):
    averages = [kn.open(run, set=[f"learner.average.evaluate={decay}"]) for decay in (0.9, 0.1)]
    pixels = [one.pictures([0], guidance=1.0)[0].pixels.astype(int) for one in averages]
    assert np.abs(pixels[0] - pixels[1]).max() > 0
    np.testing.assert_array_equal(kn.open(run).pictures([0], guidance=1.0)[0].pixels, pixels[0])


def test_pictures_are_written_by_name_and_alike_each_time(run, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["--pictures-to", str(out), "--label", "round", "--label", "0", "--count", "2", "--seed", "5", "--json"]
    assert main(["generate", str(run), *asked, "--steps", "2", "--guidance", "3", "--sampler", "euler"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == ["round", "round", "pointed", "pointed"]
    assert [line["seed"] for line in lines] == [5, 6, 7, 8]
    files = sorted(path.name for path in out.iterdir())
    assert files == ["0000-round.png", "0001-round.png", "0002-pointed.png", "0003-pointed.png"]
    made = kn.open(run).pictures(["round", 0], count=2, seed=5, steps=2, guidance=3.0, sampler="euler")
    for name, one in zip(files, made, strict=True):
        np.testing.assert_array_equal(np.array(decoded((out / name).read_bytes(), 3, 100)), one.pixels)
    assert made[0].pixels.shape == (8, 8, 3)
    assert main(["generate", str(run), "--pictures-to", str(out)]) != 0
    assert "exists and isn't an empty folder" in capsys.readouterr().err


def test_what_cannot_be_made_is_refused_with_what_can(run, tmp_path, capsys):
    opened = kn.open(run)
    with pytest.raises(UsageError, match="label 'rond' is none of the model's 2: pointed, round"):
        opened.pictures(["rond"])
    with pytest.raises(UsageError, match="label 2 is none of the model's 2: .*, or their numbers, 0 to 1"):
        opened.pictures([2])
    with pytest.raises(UsageError, match="--sampler 'eular' is unknown; did you mean 'euler'"):
        opened.pictures(sampler="eular")
    with pytest.raises(KanawaError, match="DDIM needs the noise schedule of a DDPM"):
        opened.pictures(sampler="ddim")
    with pytest.raises(UsageError, match="--steps 0: a picture takes one step at least"):
        opened.pictures(steps=0)
    with pytest.raises(UsageError, match="--count 0"):
        opened.pictures(count=0)
    assert main(["generate", str(run), "--label", "1"]) == 2
    assert "--label is about pictures: add --pictures-to DIR" in capsys.readouterr().err
    assert main(["generate", str(run), "a cat", "--pictures-to", str(tmp_path / "x")]) == 2
    assert "label 'a cat' is none of the model's 2: pointed, round" in capsys.readouterr().err
    assert main(["generate", str(run), "--pictures-to", str(tmp_path / "x"), "--prompt-ids", "1,2"]) == 2
    assert "--prompt-ids is about text" in capsys.readouterr().err


def test_the_report_shows_pictures_of_the_model_in_training(run, tmp_path):
    events = [event for event in read_events(run / "events.jsonl") if event["event"] == "sample"]
    assert [event["step"] for event in events] == [3, 6]
    shown = media_of(events[-1])
    assert [medium.text for medium in shown] == ["pointed", "round"]
    assert np.array(decoded(shown[0].data, 3, 100)).shape == (8, 8, 3)
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    text = page.read_text()
    assert text.count('<img src="data:image/png;base64,') == 4
    assert "<figcaption>round</figcaption>" in text
    evaluation = kn.open(run).evaluate().scores
    assert evaluation["unit"] == "images"


def test_media_that_were_tampered_with_are_left_out():
    good = as_json([png(np.zeros((2, 2, 1), np.uint8), "<b>")])
    bad = [{"type": "text/html", "data": "PHA+"}, {"type": "image/png", "data": "no base64!"}, 3, {"type": "image/png"}]
    assert [medium.text for medium in media_of({"media": [*bad, *good]})] == ["<b>"]
    assert media_of({"media": "x"}) == []
    large = [Medium("audio/wav", b"x" * (MOST_BYTES - 10)), Medium("audio/wav", b"y" * 11)]
    assert len(as_json(large)) == 1
    with pytest.raises(ValueError, match="media of type 'text/html' can't be shown"):
        as_json([Medium("text/html", b"")])


def test_a_run_is_exported_for_diffusers_and_read_again(folder, run, tmp_path):
    assert main(["convert", "to-hf", str(run), str(tmp_path / "hf")]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["_class_name"], config["num_layers"]) == ("DiTTransformer2DModel", 2)
    assert (tmp_path / "hf" / "diffusion_pytorch_model.safetensors").exists()
    again = HuggingFaceStore().load(tmp_path / "hf")
    assert again.config.class_names == ("pointed", "round")
    opened = kn.open(run)
    np.testing.assert_array_equal(
        again.params["denoiser.time.up.weight"], opened.params["denoiser"]["time"]["up"]["weight"]
    )


def test_digits_are_functions_of_their_number():
    source = DrawnDigits.Config(seed=1).freeze().build()
    first, second = source.row(7), DrawnDigits.Config(seed=1).freeze().build().row(7)
    np.testing.assert_array_equal(first["images"], second["images"])
    assert first["images"].shape == (16, 16, 1)
    labels = {int(source.row(i)["target_ids"]) for i in range(60)}
    assert labels == set(range(10))
    assert source.class_names == tuple("0123456789")


def test_a_plan_counts_the_operations_of_a_picture():
    model = kn.component("models", "dit-xl-2", asker="tests")()
    assert model.build().flops_per_row({}) == pytest.approx(2 * 118.6e9, rel=0.01)
    assert jax.device_count() == 8
