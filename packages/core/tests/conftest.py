"""Strict JAX for every test of core: eight CPU devices, no implicit promotion; fake plugins."""

import eight_devices  # noqa: F401
import jax
import pytest
from drills import settle_hypothesis
from fake_distributions import fake_distributions

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settle_hypothesis()


@pytest.fixture
def fake_distribution(tmp_path, monkeypatch):
    """Returns a function that installs fake distributions: real metadata, a fresh host."""
    yield from fake_distributions(tmp_path, monkeypatch)
