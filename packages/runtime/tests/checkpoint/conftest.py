"""Fixtures of the checkpoint tests."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from .checkpoint_trees import make_trees


@pytest.fixture
def trees() -> dict[str, Any]:
    """Returns `make_trees()`."""
    return make_trees()


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects what a test's failing saves and reads left, not in a later test that knows nothing of it."""
    yield
    gc.collect()
