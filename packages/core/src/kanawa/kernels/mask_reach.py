"""What a mask leaves of blocks of queries and keys, from the lowest and highest position and segment id of each.

Kernels skip blocks of which nothing is left, and mask none that are whole. Numbers may be integers, arrays or traced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kanawa.kernels.masks import MaskSpec

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


def predicates_of(mask: MaskSpec) -> tuple[str, ...]:
    """Returns the names of the mask's predicates, those inside `any_of` included."""
    inner = (name for group in mask.any_of for member in group for name in predicates_of(member))
    return tuple(dict.fromkeys((*mask.predicates, *inner)))


def reach(mask: MaskSpec, at: Ranges) -> tuple[Any, Any]:
    """Returns whether some, and whether all, pairs of these are allowed.

    "Some" may be wrong where conditions meet; "all" never is.
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
        some, every = (here, everywhere) if mask.is_lone_prefix else (some | here, every | everywhere)
    if mask.segments:
        here, everywhere = _same_segment(at.q_segments, at.k_segments)
        some, every = some & here, every & everywhere
    return some, every


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
        here, everywhere = _same_segment(*((low // mask.chunk, high // mask.chunk) for low, high in (q, k)))
        some, every = some & here, every & everywhere
    return some, every


def _same_segment(q: Range | None, k: Range | None) -> tuple[Any, Any]:
    if q is None or k is None:
        return _UNKNOWN
    some = (q[0] <= k[1]) & (k[0] <= q[1])
    every = (q[0] == q[1]) & (k[0] == k[1]) & (q[0] == k[0])
    return some, every


def _any(members: list[Any]) -> Any:
    result = members[0]
    for member in members[1:]:
        result = result | member
    return result
