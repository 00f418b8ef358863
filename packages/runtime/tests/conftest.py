"""Strict JAX for every test of runtime: eight CPU devices, no rank promotion (optax relies on dtype promotion)."""

import os
import signal

# A shell that runs tests in the background ignores SIGINT, and every process started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAGS = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=8"

import jax  # noqa: E402
from drills import (  # noqa: E402
    pytest_terminal_summary,  # noqa: F401 - what a conftest holds, pytest takes
    record_drill,  # noqa: F401
    settle_hypothesis,
)

settle_hypothesis()
jax.config.update("jax_numpy_rank_promotion", "raise")
