"""Golden files of every shipped experiment: its config and its parameters. `UPDATE_GOLDEN=1` rewrites them."""

import os
import pathlib

import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths

GOLDEN = pathlib.Path(__file__).parent / "golden"
EXPERIMENTS = (
    "clip-tiny",
    "coca-tiny",
    "dit-tiny",
    "dit-xl-2",
    "grpo-demo",
    "llama-1b",
    "llama2-13b",
    "llama2-70b",
    "llama2-7b",
    "mmdit-tiny",
    "quickstart",
    "qwen3-30b-a3b",
    "sd3-medium",
    "vae-tiny",
    "vit-tiny",
    "vlm-tiny",
    "wan2.1-14b",
)


def description(name):
    """Returns the resolved config, then one line a parameter: path, shape, axes, decay and rate scales, count."""
    cfg = kn.compose(name).config
    specs = flatten_paths(kn.param_specs(cfg.model.build()))
    table = [
        f"{path}: {list(s.shape)} {s.dtype} {'/'.join(map(str, s.axes))} decay {s.weight_decay} lr {s.lr_scale}"
        for path, s in specs.items()
    ]
    total = sum(s.size for s in specs.values())
    return "\n".join([kn.to_text(cfg).rstrip(), "", f"{total:,} parameters", *table]) + "\n"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_golden(name):
    path = GOLDEN / f"{name}.txt"
    found = description(name)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text(), f"{path.name} differs; if meant, rerun with UPDATE_GOLDEN=1 and review the diff"


def test_every_experiment_has_a_golden():
    ours = {c.name for c in kn.host().components("experiments") if c.distribution.startswith("kanawa-")}
    assert ours == set(EXPERIMENTS)
