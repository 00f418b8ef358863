"""Orthogonalisation by a quintic Newton-Schulz iteration: U V^T of a matrix U S V^T, with matrix products alone."""

import jax.numpy as jnp
from jaxtyping import Array, Float

#: The coefficients of Keller Jordan's Muon: steepest at zero, so small singular values grow fastest. They bring every
#: singular value into about [0.7, 1.2], not to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrices: Float[Array, "N I O"], steps: int, dtype: str) -> Float[Array, "N I O"]:
    """Returns matrices of the same singular vectors whose singular values are about 1, in the input's dtype.

    Computed in `dtype`; bfloat16 is enough (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).
    """
    # Of the two products of a matrix with its transpose, the smaller one has the same singular values.
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = jnp.swapaxes(matrices, -1, -2) if tall else matrices
    # The iteration converges for singular values up to 1 only, and the Frobenius norm bounds the largest.
    norm = jnp.linalg.norm(x.astype(jnp.float32), axis=(-2, -1), keepdims=True)
    x = (x.astype(jnp.float32) / jnp.maximum(norm, 1e-7)).astype(dtype)
    a, b, c = (jnp.asarray(value, dtype) for value in COEFFICIENTS)
    for _ in range(steps):
        gram = x @ jnp.swapaxes(x, -1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    x = jnp.swapaxes(x, -1, -2) if tall else x
    return x.astype(matrices.dtype)
