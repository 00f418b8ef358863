"""Strict JAX for every test of layers: eight CPU devices, no implicit promotion."""

import eight_devices  # noqa: F401
import jax
from drills import settle_hypothesis

settle_hypothesis()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
