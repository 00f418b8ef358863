"""Digests: what must match to resume, and what may change."""

import os
import subprocess
import sys
from typing import Any

import pytest
from kanawa.config import Config, digest
from kanawa.errors import ConfigError


class Layer(Config):
    PLACEMENT = ("remat",)
    width: int = 4
    remat: bool = False


class Deep(Layer):
    PLACEMENT = ("tuning",)
    tuning: dict[str, int] = {"a": 1, "b": 2}


class Run(Config):
    PLACEMENT = ("mesh",)
    layers: list[Layer] = [Layer(), Deep()]
    mesh: Any = None


@pytest.mark.parametrize(
    ("path", "value", "changed"),
    [
        ("layers[0].width", 5, {"experiment", "all"}),
        ("layers[0].remat", True, {"placement", "all"}),
        ("layers[1].remat", True, {"placement", "all"}),
        ("layers[1].tuning", {"a": 2}, {"placement", "all"}),
        ("layers[1].tuning", {"b": 2, "a": 1}, set()),
        ("mesh", Layer(width=1), {"placement", "all"}),
    ],
)
def test_which_digest_changes(path: str, value: Any, changed: set[str]) -> None:
    before, after = Run(), Run().set_path(path, value)
    parts: Any = ("experiment", "placement", "all")
    assert {p for p in parts if digest(before, p) != digest(after, p)} == changed


def test_int_and_float_differ() -> None:
    assert digest(Run(mesh=1), "all") != digest(Run(mesh=1.0), "all")


def test_another_process_agrees() -> None:
    script = (
        "from kanawa.config import *\n"
        "import math\n"
        "print(digest(config_for(math.dist, p=(1, 2.5), q={'a': None}), 'all'))"
    )
    digests = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_unknown_part() -> None:
    with pytest.raises(ConfigError, match="no digest 'experiments'; did you mean 'experiment'"):
        digest(Run(), "experiments")  # type: ignore[arg-type]
