"""Strict JAX for every test of runtime: eight CPU devices, no rank promotion (optax relies on dtype promotion)."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAGS = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=8"

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
