"""What products and sums are accumulated in."""

from typing import Any

import jax.numpy as jnp


def wide(*dtypes: Any) -> jnp.dtype:
    """Returns fp32, or fp64 where one of the dtypes is fp64.

    Only a comparison asks for fp64: a reference is then the exact value that kernels are measured against.
    """
    return jnp.dtype("float64" if any(jnp.dtype(dtype) == jnp.dtype("float64") for dtype in dtypes) else "float32")
