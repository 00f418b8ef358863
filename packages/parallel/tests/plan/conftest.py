"""The texts that compilers wrote for a small sharded step; `make_texts.py` makes them anew."""

from pathlib import Path

import pytest
from sashimono_parallel.plan.hlo import parse_module

TEXTS = Path(__file__).with_name("texts")
PLATFORMS = ("tpu", "gpu")


@pytest.fixture(scope="session")
def text():
    """Returns a function from a text's name to the text."""
    return lambda name: (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def modules(text):
    """The compiled step by platform."""
    return {platform: parse_module(text(f"{platform}_program")) for platform in PLATFORMS}
