"""Operands of kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def normal():
    """Returns a function from a shape to fp32 normals; drawn by NumPy, which compiles nothing."""
    rng = np.random.default_rng(7)
    return lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)


@pytest.fixture(autouse=True)
def mixed_dtypes():
    """Kernels are compared on operands of different dtypes too."""
    with jax.numpy_dtype_promotion("standard"):
        yield
