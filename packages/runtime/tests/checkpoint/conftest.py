"""Fixtures of the checkpoint tests."""

from typing import Any

import pytest

from .checkpoint_trees import make_trees


@pytest.fixture
def trees() -> dict[str, Any]:
    """Returns `make_trees()`."""
    return make_trees()
