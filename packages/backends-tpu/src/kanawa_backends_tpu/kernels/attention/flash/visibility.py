"""A mask inside a kernel: for one pair of positions, and for ranges of them at once."""

from typing import Any

import jax
import jax.numpy as jnp
from kanawa.kernels.masks import MaskSpec

#: Conditions of a mask that the kernels know.
MASK_PARTS = frozenset({"causal", "window", "chunk", "prefix", "segments"})

#: Lowest and highest of some numbers.
Range = tuple[Any, Any]


def reach(mask: MaskSpec, q: Range, k: Range, prefix: Any = None) -> tuple[Any, Any]:
    """Returns whether some, and whether all, pairs of these positions are allowed, segments apart.

    "Some" may be wrong where conditions meet; "all" never is. Works on integers, arrays and traced scalars.
    """
    some, every = q[0] == q[0], q[0] == q[0]
    left, right = mask.window or (None, None)
    if mask.causal:
        some, every = some & (k[0] <= q[1]), every & (k[1] <= q[0])
    if left is not None:
        some, every = some & (k[1] >= q[0] - left), every & (k[0] >= q[1] - left)
    if right is not None:
        some, every = some & (k[0] <= q[1] + right), every & (k[1] <= q[0] + right)
    if mask.chunk is not None:
        first_q, last_q, first_k, last_k = (x // mask.chunk for x in (*q, *k))
        some = some & (first_k <= last_q) & (first_q <= last_k)
        every = every & (first_q == last_q) & (first_k == last_k) & (first_q == first_k)
    if mask.prefix and prefix is not None:
        within, alone = k[1] < prefix, not _by_position(mask)
        some = k[0] < prefix if alone else some | (k[0] < prefix)
        every = within if alone else every | within
    return some, every


def same_segment(q: Range, k: Range) -> tuple[Any, Any]:
    """Returns whether some, and whether all, pairs of these segment ids may be equal, are equal."""
    some = (q[0] <= k[1]) & (k[0] <= q[1])
    every = (q[0] == q[1]) & (k[0] == k[1]) & (q[0] == k[0])
    return some, every


def visible(mask: MaskSpec, q: jax.Array, k: jax.Array, prefix: Any = None) -> jax.Array | None:
    """Returns which pairs of positions are allowed, segments apart; shapes broadcast. None for all of them."""
    conditions = []
    left, right = mask.window or (None, None)
    if mask.causal:
        conditions.append(k <= q)
    if left is not None:
        conditions.append(k >= q - left)
    if right is not None:
        conditions.append(k <= q + right)
    if mask.chunk is not None:
        conditions.append(_chunk(q, mask.chunk) == _chunk(k, mask.chunk))
    result = both(*conditions)
    if mask.prefix:
        within = k < prefix
        result = within if result is None else result | within
    return result


def both(*conditions: jax.Array | None) -> jax.Array | None:
    """Returns the conjunction of those conditions that aren't None; None if there is none."""
    result = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else result & condition
    return result


def _by_position(mask: MaskSpec) -> bool:
    return mask.causal or mask.window is not None or mask.chunk is not None


def _chunk(position: jax.Array, size: int) -> jax.Array:
    # The vector units don't divide integers. Exact for positions below 2**22.
    return jnp.floor((position.astype(jnp.float32) + 0.5) / size)
