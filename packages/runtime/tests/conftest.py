"""Strict JAX for every test of runtime: eight CPU devices, no rank promotion (optax relies on dtype promotion)."""

import signal

import eight_devices  # noqa: F401
import jax
import pytest
from drills import (
    pytest_terminal_summary,  # noqa: F401 - what a conftest holds, pytest takes
    record_drill,  # noqa: F401
    settle_hypothesis,
)
from nursery import Nursery

# A shell that runs tests in the background ignores SIGINT, and every process started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
settle_hypothesis()
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def nursery():
    """Forks `kanawa` processes that have imported everything, each on one device."""
    with Nursery() as started:
        yield started
