"""A mask on one tile of scores, inside a kernel: the conditions of core's MaskSpec on index vectors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from kanawa.errors import KernelError
from kanawa.kernels.masks import MaskSpec
from kanawa.plugins import component


class Sides(NamedTuple):
    """Of the queries and the keys of a tile, shaped to broadcast to it: positions, segment ids; and a prefix's length.

    None where the mask has no use for them.
    """

    q: jax.Array
    k: jax.Array
    q_segments: jax.Array | None = None
    k_segments: jax.Array | None = None
    prefix: jax.Array | None = None


def allowed(mask: MaskSpec, sides: Sides) -> jax.Array | None:
    """Returns which scores of a tile count, or None for all: `MaskSpec.allowed` without its dimension of rows."""
    conditions = [*_by_position(mask, sides)]
    for group in mask.any_of:
        members = [allowed(member, sides) for member in group]
        # None allows everything, and so does a group with one such member.
        either = None if any(member is None for member in members) else _combined(jnp.logical_or, members)
        conditions += [] if either is None else [either]
    result = _combined(jnp.logical_and, conditions)
    if mask.prefix:
        visible = sides.k < _operand(sides.prefix)
        lone = not (mask.causal or mask.window or mask.chunk or mask.predicates or mask.any_of)
        result = visible if lone else None if result is None else result | visible
    if mask.segments:
        same = _operand(sides.q_segments) == _operand(sides.k_segments)
        result = same if result is None else result & same
    return result


def _by_position(mask: MaskSpec, sides: Sides) -> list[jax.Array]:
    q, k = sides.q, sides.k
    conditions = [k <= q] if mask.causal else []
    left, right = mask.window or (None, None)
    if left is not None:
        conditions.append(k >= q - left)
    if right is not None:
        conditions.append(k <= q + right)
    if mask.chunk is not None:
        # Floors: positions of queries before a row's first key are negative.
        conditions.append(jnp.floor_divide(q, mask.chunk) == jnp.floor_divide(k, mask.chunk))
    return conditions + [component("masks", name)(q, k) for name in mask.predicates]


def _operand(x: jax.Array | None) -> jax.Array:
    """Returns what the mask needs of a tile; raises KernelError where the tile lacks it, as none should."""
    if x is None:
        message = "a mask by segments or prefixes needs their operands"
        raise KernelError(message)
    return x


def _combined(how: Callable[[Any, Any], jax.Array], conditions: list[Any]) -> jax.Array | None:
    result = None
    for condition in conditions:
        result = condition if result is None else how(result, condition)
    return result
