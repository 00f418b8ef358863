"""Strict JAX on eight devices."""

import eight_devices  # noqa: F401
import jax
from drills import settle_hypothesis

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settle_hypothesis()
