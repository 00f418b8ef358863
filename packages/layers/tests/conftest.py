"""Strict JAX for every test of layers: eight CPU devices, no implicit promotion."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAGS = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=8"

import hypothesis  # noqa: E402
import jax  # noqa: E402

# A deadline would measure the machine's load, and in first examples the compiler.
hypothesis.settings.register_profile("kanawa", deadline=None)
hypothesis.settings.load_profile("kanawa")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
