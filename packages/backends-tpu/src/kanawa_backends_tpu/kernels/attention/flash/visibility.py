"""A mask inside a kernel: for pairs of queries and keys, and for ranges of them at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.kernels.masks import MaskSpec
from kanawa.plugins import component

#: Lowest and highest of some numbers.
Range = tuple[Any, Any]

#: Of a condition that isn't known before the kernel runs: some pairs may be allowed, not all need be.
_UNKNOWN = (True, False)


@dataclass(frozen=True)
class Ranges:
    """What is known of some queries and some keys; None of what only the data say.

    Attributes:
        q, k: their positions.
        q_segments, k_segments: their segment ids.
        prefix: the row's prefix length.
        predicates: of each predicate by name, whether it allows some and whether it allows all of the pairs.
    """

    q: Range
    k: Range
    q_segments: Range | None = None
    k_segments: Range | None = None
    prefix: Any = None
    predicates: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pairs:
    """Positions and segment ids of queries and keys, of shapes that broadcast, and the row's prefix length."""

    q: jax.Array
    k: jax.Array
    q_segments: jax.Array | None = None
    k_segments: jax.Array | None = None
    prefix: Any = None


def predicates_of(mask: MaskSpec) -> tuple[str, ...]:
    """Returns the names of the mask's predicates, those inside `any_of` included."""
    inner = (name for group in mask.any_of for member in group for name in predicates_of(member))
    return tuple(dict.fromkeys((*mask.predicates, *inner)))


def reach(mask: MaskSpec, at: Ranges) -> tuple[Any, Any]:
    """Returns whether some, and whether all, pairs of these are allowed.

    "Some" may be wrong where conditions meet; "all" never is. Works on integers, arrays and traced scalars.
    """
    some, every = _reach_of_positions(mask, at.q, at.k)
    for name in mask.predicates:
        here, everywhere = at.predicates.get(name, _UNKNOWN)
        some, every = some & here, every & everywhere
    for group in mask.any_of:
        members = [reach(member, at) for member in group]
        some, every = some & _any([member[0] for member in members]), every & _any([member[1] for member in members])
    if mask.prefix:
        here, everywhere = _UNKNOWN if at.prefix is None else (at.k[0] < at.prefix, at.k[1] < at.prefix)
        some, every = (here, everywhere) if _lone_prefix(mask) else (some | here, every | everywhere)
    if mask.segments:
        here, everywhere = _same_segment(at.q_segments, at.k_segments)
        some, every = some & here, every & everywhere
    return some, every


def visible(mask: MaskSpec, at: Pairs) -> jax.Array | None:
    """Returns which pairs are allowed; None for all of them."""
    left, right = mask.window or (None, None)
    conditions: list[Any] = []
    if mask.causal:
        conditions.append(at.k <= at.q)
    if left is not None:
        conditions.append(at.k >= at.q - left)
    if right is not None:
        conditions.append(at.k <= at.q + right)
    if mask.chunk is not None:
        conditions.append(_chunk(at.q, mask.chunk) == _chunk(at.k, mask.chunk))
    # A predicate of one side alone has its shape.
    shape = jnp.broadcast_shapes(at.q.shape, at.k.shape)
    conditions += [jnp.broadcast_to(component("masks", name)(at.q, at.k), shape) for name in mask.predicates]
    for group in mask.any_of:
        members = [visible(member, at) for member in group]
        # None allows everything, and so does a group with one such member.
        if all(member is not None for member in members):
            conditions.append(_any(members))
    result = both(*conditions)
    if mask.prefix:
        within = at.k < at.prefix
        result = within if _lone_prefix(mask) else None if result is None else result | within
    if mask.segments:
        result = both(result, at.q_segments == at.k_segments)
    return result


def both(*conditions: Any) -> jax.Array | None:
    """Returns the conjunction of those conditions that aren't None; None if there is none."""
    result = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else result & condition
    return result


def _reach_of_positions(mask: MaskSpec, q: Range, k: Range) -> tuple[Any, Any]:
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
    return some, every


def _same_segment(q: Range | None, k: Range | None) -> tuple[Any, Any]:
    if q is None or k is None:
        return _UNKNOWN
    some = (q[0] <= k[1]) & (k[0] <= q[1])
    every = (q[0] == q[1]) & (k[0] == k[1]) & (q[0] == k[0])
    return some, every


def _lone_prefix(mask: MaskSpec) -> bool:
    return not (mask.causal or mask.window or mask.chunk or mask.predicates or mask.any_of)


def _any(members: list[Any]) -> Any:
    result = members[0]
    for member in members[1:]:
        result = result | member
    return result


def _chunk(position: jax.Array, size: int) -> jax.Array:
    # The vector units don't divide integers, which takes them some twenty operations. Exact for positions below 2**22.
    return jnp.floor((position.astype(jnp.float32) + 0.5) / size)
