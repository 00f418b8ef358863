"""Modifiers and meshes reach the experiments that aren't of text: each builds and lowers, and eight devices are one."""

import math
import wave
from array import array

import kanawa as kn
import numpy as np
import pytest
from kanawa.composition.prepare import prepare
from kanawa.errors import KanawaError
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop

#: What has no layer of the kind: convolutions have neither dense weights nor a stack.
CONVOLUTIONS = {
    "resnet-tiny": {"moe", "remat", "dropout"},
    "vae-tiny": {"lora", "int8", "fp8", "moe", "remat", "dropout"},
}
EXPERIMENTS = (
    *("vit-tiny", "clip-tiny", "coca-tiny", "vlm-tiny", "dit-tiny", "mmdit-tiny", "wan-tiny"),
    *("conformer-tiny", "conformer-tiny-rnnt", "resnet-tiny", "vae-tiny"),
)
MODIFIERS = (
    *("lora", "int8", "fp8", "moe:num_experts=4,top_k=1", "norm:kind=rms-norm", "remat:policy=full"),
    *("compute:dtype=bfloat16", "accumulate:microbatches=2", "dropout"),
)
QUICK = {("coca-tiny", "moe:num_experts=4,top_k=1"), ("conformer-tiny", "lora"), ("mmdit-tiny", "fp8")}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Returns a folder of tones with what they say."""
    folder = tmp_path_factory.mktemp("sounds")
    for number in range(24):
        text = ("left", "right", "stop")[number % 3]
        (folder / f"{number}.txt").write_text(text)
        tone = array("h", (int(9000 * math.sin(0.05 * len(text) * i)) for i in range(4000)))
        with wave.open(str(folder / f"{number}.wav"), "wb") as sound:
            sound.setparams((1, 2, 16000, 0, "NONE", ""))
            sound.writeframes(tone.tobytes())
    return folder


def small(name, sounds, modifiers=(), on="cpu"):
    """Returns the experiment with towers of one layer, on rows that are drawn or lie in `sounds`."""
    data = {
        "resnet-tiny": "drawn-shapes:height=32,width=32",
        "wan-tiny": "random-latents:shape=[4,8,8,4],text_length=8,text_dim=32",
    }.get(name, f"{sounds}:max_seconds=0.5" if name.startswith("conformer") else None)
    cfg = kn.compose(name, data=data, overrides=["batch_size=8", "steps=2"]).config.clone()
    for _, node in cfg.model.walk():
        if isinstance(vars(node).get("num_layers"), int):
            node.set(num_layers=1)
    cfg.evaluation.set(every_steps=100, max_batches=1, final_batches=1)
    return kn.compose(cfg, on, modifiers)


@pytest.mark.parametrize(
    ("name", "modifier"),
    [
        pytest.param(name, modifier, marks=[] if (name, modifier) in QUICK else pytest.mark.nightly)
        for name in EXPERIMENTS
        for modifier in MODIFIERS
    ],
)
def test_a_modifier_reaches_the_step_and_the_plan(name, modifier, sounds):
    if modifier.partition(":")[0] in CONVOLUTIONS.get(name, ()):
        with pytest.raises(KanawaError, match=r"no \w+ under '\*\*'"):
            small(name, sounds, [modifier])
        return
    composed = small(name, sounds, [modifier])
    prepare(composed, "abstract").program("train_step").lower()
    assert quick_report(composed, "train_step").memory_per_device_bytes > 0


def losses(composition, run):
    Loop(composition, run, steps=2).execute()
    return [event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "step"]


@pytest.mark.parametrize(
    "name", ["vae-tiny", *(pytest.param(n, marks=pytest.mark.nightly) for n in EXPERIMENTS if n != "vae-tiny")]
)
def test_eight_devices_have_the_losses_of_one(name, sounds, tmp_path):
    # Muon's iterations of each matrix take most of the time to compile, and have tests of their own.
    adam, mesh = "optimizer:name=adamw", 'mesh:axes={"data":4,"fsdp":2}'
    one = losses(small(name, sounds, [adam]), tmp_path / "one")
    wide = losses(small(name, sounds, [adam, mesh], on="cpu-8"), tmp_path / "eight")
    np.testing.assert_allclose(wide, one, rtol=5e-5)
