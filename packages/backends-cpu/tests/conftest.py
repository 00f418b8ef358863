"""Strict JAX on eight devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAGS = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=8"

import jax  # noqa: E402
from drills import settle_hypothesis  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settle_hypothesis()
