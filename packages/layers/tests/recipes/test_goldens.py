"""Every catalogued model against its golden file: config, and parameter table with axes, decay and count.

UPDATE_GOLDEN=1 writes the files; the difference is what to review.
"""

import os
from pathlib import Path

import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.plugins import component, host

GOLDENS = Path(__file__).parent / "goldens"
STATES = [s for s in host().components("models") if s.distribution == "kanawa-layers"]
MODELS = [s.name for s in STATES]


def first_of_its_file(name: str) -> str:
    """Returns the model that the others of the same recipe file are recorded as differences from."""
    files = {s.name: s.value.split(":")[0] for s in STATES}
    return min(other for other, file in files.items() if file == files[name])


def _table(specs: dict[str, kn.ParamSpec]) -> list[tuple[str, ...]]:
    return [
        (
            path,
            "x".join(map(str, spec.shape)) or "scalar",
            ",".join(axis or "-" for axis in spec.axes),
            f"decay={spec.weight_decay:g}",
            f"lr={spec.lr_scale:g}",
            f"{spec.size:,}",
        )
        for path, spec in specs.items()
    ]


def golden_text(name: str) -> str:
    """Returns what a model's golden file holds; FROM_PARENT values show as such."""
    cfg, first = component("models", name)(), first_of_its_file(name)
    model = cfg.build()
    params, state = flatten_paths(kn.param_specs(model)), flatten_paths(kn.state_specs(model))
    lines = kn.to_text(cfg).splitlines()
    if name != first:
        changes = [f"{first}, but for:", *map(str, kn.diff(component("models", first)(), cfg))]
        lines = min(changes, lines, key=lambda text: len("\n".join(text)))
    lines += ["", *("  ".join(row) for row in _table(params))]
    lines += ["state: " + "  ".join(row) for row in _table(state)]
    total = sum(spec.size for spec in params.values())
    return "\n".join([*lines, "", f"{total:,} parameters", ""])


@pytest.mark.parametrize("name", MODELS)
def test_model_is_as_recorded(name):
    file, text = GOLDENS / f"{name}.txt", golden_text(name)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDENS.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"{name} has no golden file; run this test with UPDATE_GOLDEN=1 and review what it writes"
    assert text == file.read_text()


def test_no_golden_without_a_model():
    assert {file.stem for file in GOLDENS.glob("*.txt")} == set(MODELS)
