"""Strict JAX for every test of core: eight CPU devices, no implicit promotion; fake plugins."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAGS = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=8"

import jax  # noqa: E402
import pytest  # noqa: E402
from drills import settle_hypothesis  # noqa: E402
from fake_distributions import fake_distributions  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settle_hypothesis()


@pytest.fixture
def fake_distribution(tmp_path, monkeypatch):
    """Returns a function that installs fake distributions: real metadata, a fresh host."""
    yield from fake_distributions(tmp_path, monkeypatch)
