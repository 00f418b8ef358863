"""The inverse of a unit lower triangular matrix by products alone, which every accelerator does fast and can shard."""

import jax
import jax.numpy as jnp


def unit_lower_inverse(below: jax.Array) -> jax.Array:
    """Returns (I + below)^-1 for strictly lower triangular matrices [..., T, T], fp32.

    Inverses of diagonal blocks are joined to those of twice the size: the corner between two blocks X and Y, where
    `below` has B, is -Y B X. As stable as substitution, which a power series of `below` would not be.
    """
    size = below.shape[-1]
    index = jnp.arange(size)
    lead = (1,) * (below.ndim - 2)
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=below.dtype).reshape(*lead, size, size), below.shape)
    block = 1
    while block < size:
        pair = index // (2 * block)
        # Same pair, different block: `below` is strictly lower, so of the two corners only the lower left one holds
        # anything. By masks, not slices: every size works, and all pairs are done in one product.
        corner = (pair[:, None] == pair[None, :]) & ((index // block)[:, None] != (index // block)[None, :])
        part = jnp.where(corner.reshape(*lead, size, size), below, 0.0)
        joined = jnp.matmul(part, inverse, precision=jax.lax.Precision.HIGHEST)
        inverse = inverse - jnp.matmul(inverse, joined, precision=jax.lax.Precision.HIGHEST)
        block *= 2
    return inverse
