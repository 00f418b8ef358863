"""Losses of ten steps against those that TRL gave on the same small model and data, which are files beside this one.

`benchmarks/*_beside_trl.py --small --write FILE` writes them again, with the versions they are of.
"""

import json
import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import grpo_beside_trl  # noqa: E402
import preferences_beside_trl  # noqa: E402
import sft_beside_trl  # noqa: E402
from beside_trl import apart  # noqa: E402
from trl_folder import write_model  # noqa: E402

TOLERANCE = 1e-5
VARIANTS = [name for name in grpo_beside_trl.VARIANTS if name != "grpo"]


def losses_of_trl(file: str, name: str) -> list[float]:
    made: list[float] = json.loads((ROOT / f"tests/integration/golden/trl/{file}.json").read_text())["losses"][name]
    assert len(made) == 10
    assert np.ptp(made) > 1e-4  # it learns: equal losses that stay where they are would say nothing
    return made


def test_fine_tuning(tmp_path: pathlib.Path) -> None:
    sft_beside_trl.write_folder(tmp_path, small=True)
    made = sft_beside_trl.alone(tmp_path, sft_beside_trl.COMPARED, sft_beside_trl.SHORT)
    assert apart(made.losses, losses_of_trl("sft", "sft")) < TOLERANCE


@pytest.mark.parametrize("name", ["dpo", pytest.param("kto", marks=pytest.mark.nightly)])
def test_preferences(tmp_path: pathlib.Path, name: str) -> None:
    preferences_beside_trl.write_folder(tmp_path, small=True)
    made = preferences_beside_trl.equal(tmp_path, name, preferences_beside_trl.SHORT)
    assert apart(made.losses, losses_of_trl("preferences", name)) < TOLERANCE


@pytest.mark.parametrize("name", ["grpo", *(pytest.param(v, marks=pytest.mark.nightly) for v in VARIANTS)])
def test_rewards(tmp_path: pathlib.Path, name: str) -> None:
    sizes = grpo_beside_trl.SMALL
    write_model(tmp_path / "model", **sizes.model)
    _, modifiers = grpo_beside_trl.VARIANTS[name]
    made = grpo_beside_trl.ours(tmp_path, sizes, grpo_beside_trl.completions(sizes), modifiers)
    assert apart(made.losses, losses_of_trl("grpo", name)) < TOLERANCE
