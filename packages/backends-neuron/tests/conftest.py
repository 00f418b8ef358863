"""Strict JAX, and the interpreter in NKI's place: kernels import it under NKI's own name."""

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The interpreter multiplies tiles of 128 by 512: threads cost more than they bring.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "interpreter"))

import jax  # noqa: E402
import quick_process  # noqa: E402, F401

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
