"""Mask predicates that core offers by name; a plugin adds others in the catalog's kind "masks"."""

import jax


def dilated(q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
    """Returns where the distance is even: every second key (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    q_positions: int [..., T, 1]; kv_positions: int [..., 1, S]. Operators alone, so that it runs inside any kernel.
    """
    # `& 1` is also right for negative distances, and no division, which TPUs emulate.
    return ((q_positions - kv_positions) & 1) == 0
