"""MaskSpec: who may attend to whom, static; a kernel takes it natively or as an array.

Shapes: B batch (or 1, which broadcasts), T queries, S keys.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from kanawa.errors import KernelError
from kanawa.plugins import component

_CALLS = frozenset({"jit", "pjit"})
_ATOMS = ("causal", "window", "chunk", "predicates", "any_of")


class MaskError(KernelError):
    """A mask was described in a way that can't be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskSpec:
    """Static and hashable. A query may attend to a key if every condition that is set holds.

    Segments apply to everything else; `prefix` is an exception to `causal`, `window`, `chunk` and
    `predicates`: `MaskSpec(causal=True, prefix=True)` is the prefix language model, and a lone
    `prefix=True` allows the prefix only. Combine with `&` and `|`.

    Attributes:
        causal: key position <= query position, or that many later ones as the operand `lookahead` says.
        window: (left, right): query - left <= key <= query + right; None leaves a side open. A
            sliding window of W tokens, the query included, is `causal=True, window=(W - 1, None)`.
        chunk: both positions lie in the same chunk of this many positions.
        prefix: keys before the row's prefix length (an operand) are always allowed.
        segments: both have the same segment id (operands). Id 0 is padding: what its rows get is
            unspecified, but finite.
        predicates: names of kind "masks" in the catalog: functions of (query positions [B, T, 1],
            key positions [B, 1, S]) returning booleans.
        any_of: groups of masks; in each group at least one must allow.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    chunk: int | None = None
    prefix: bool = False
    segments: bool = False
    predicates: tuple[str, ...] = ()
    any_of: tuple[tuple["MaskSpec", ...], ...] = ()

    def __post_init__(self) -> None:
        """Checks sizes and brings equal masks to one form; raises MaskError."""
        if self.chunk is not None and self.chunk < 1:
            message = f"chunk={self.chunk}: a chunk has at least 1 position"
            raise MaskError(message)
        if self.window is not None:
            if len(self.window) != 2 or any(w is not None and w < 0 for w in self.window):
                message = f"window={self.window}: give (left, right), each None or at least 0"
                raise MaskError(message)
            if self.causal:  # The right side is closed already: one form for equal masks.
                left = self.window[0]
                object.__setattr__(self, "window", None if left is None else (left, None))
            elif self.window == (None, None):
                object.__setattr__(self, "window", None)

    @property
    def is_full(self) -> bool:
        """True where every query attends to every key."""
        return self == FULL

    @property
    def without_segments(self) -> "MaskSpec":
        """The mask with the segment condition dropped."""
        return dataclasses.replace(self, segments=False)

    @property
    def uses(self) -> frozenset[str]:
        """The names of the conditions that are set, `any_of` included."""
        names = (*_ATOMS, "prefix", "segments")
        return frozenset(name for name in names if getattr(self, name))

    @property
    def is_lone_prefix(self) -> bool:
        """True where the prefix is all that a query sees: there is no condition that it is an exception to."""
        return self.prefix and not any(getattr(self, atom) for atom in _ATOMS)

    @property
    def needs_prefix(self) -> bool:
        """True where a prefix length is needed, inside `any_of` too."""
        return self.prefix or any(mask.needs_prefix for group in self.any_of for mask in group)

    @property
    def needs_segments(self) -> bool:
        """True where segment ids are needed, inside `any_of` too."""
        return self.segments or any(mask.needs_segments for group in self.any_of for mask in group)

    @property
    def keeps_own_position(self) -> bool:
        """True where a query at position p may always attend to a key at p of its own segment."""
        own = not self.predicates and not self.is_lone_prefix
        return own and all(any(m.keeps_own_position for m in group) for group in self.any_of)

    def __and__(self, other: "MaskSpec") -> "MaskSpec":
        """Returns the mask that allows what both allow."""
        # (a | prefix) & b is not (a & b) | prefix: a mask with a prefix keeps its exception to itself, as a group.
        if self.prefix and other.uses - {"segments"}:
            return _as_group(self) & other
        if other.prefix and self.uses - {"segments"}:
            return self & _as_group(other)
        chunk, any_of = self.chunk, self.any_of + other.any_of
        # Two chunk sizes can't be one: the second becomes a condition of its own.
        if None not in (self.chunk, other.chunk) and self.chunk != other.chunk:
            any_of += ((MaskSpec(chunk=other.chunk),),)
        elif other.chunk is not None:
            chunk = other.chunk
        return MaskSpec(
            causal=self.causal or other.causal,
            window=_narrower(self.window, other.window),
            chunk=chunk,
            prefix=self.prefix or other.prefix,
            segments=self.segments or other.segments,
            predicates=tuple(dict.fromkeys(self.predicates + other.predicates)),
            any_of=any_of,
        )

    def __or__(self, other: "MaskSpec") -> "MaskSpec":
        """Returns the mask that allows what either allows."""
        if self == other:
            return self
        if self.is_full or other.is_full:
            return FULL
        for prefix, rest in ((self, other), (other, self)):
            # The short form: a kernel may know a mask with a prefix, and hardly any takes `any_of`.
            if prefix == MaskSpec(prefix=True) and not rest.segments:
                return dataclasses.replace(rest, prefix=True)
        return MaskSpec(any_of=((self, other),))

    def split(self, native: Collection[str]) -> tuple["MaskSpec", "MaskSpec"]:
        """Returns (what a kernel takes of the mask, the rest): a query sees a key where both allow it.

        Args:
            native: the conditions that the kernel knows, by the names of `uses`; "left_window" for a window whose right
                side is open; a predicate by its own name, or all with "predicates".

        A prefix is an exception to the other conditions, so that it stays with them: all native, or all rest.
        """
        taken, rest = set(native), self.without_segments
        own = MaskSpec(segments=self.segments and "segments" in taken)
        if self.prefix:
            if rest.uses <= taken:
                return rest & own, MaskSpec(segments=self.segments != own.segments)
            return own, dataclasses.replace(self, segments=self.segments != own.segments)
        left, right = self.window or (None, None)
        sided = self.window is not None and "window" not in taken and "left_window" in taken
        native = tuple(name for name in self.predicates if name in taken or "predicates" in taken)
        mine = MaskSpec(
            causal=self.causal and "causal" in taken,
            window=(left, None) if sided else self.window if "window" in taken else None,
            chunk=self.chunk if "chunk" in taken else None,
            segments=own.segments,
            predicates=native,
            any_of=self.any_of if "any_of" in taken else (),
        )
        theirs = MaskSpec(
            causal=self.causal and not mine.causal,
            window=(None, right) if sided else None if "window" in taken else self.window,
            chunk=None if mine.chunk else self.chunk,
            segments=self.segments and not mine.segments,
            predicates=tuple(name for name in self.predicates if name not in native),
            any_of=() if mine.any_of else self.any_of,
        )
        return mine, theirs

    def allowed(
        self,
        q_positions: jax.Array,
        kv_positions: jax.Array,
        q_segments: jax.Array | None = None,
        kv_segments: jax.Array | None = None,
        prefix_lengths: jax.Array | None = None,
        lookahead: jax.Array | None = None,
    ) -> jax.Array | None:
        """Returns which keys each query may attend to: bool [B, T, S], or None for all.

        Positions and segments: int [B, T] and [B, S], or [T] and [S] for every row.
        prefix_lengths: int [B]. lookahead: int [B, T] or [T].
        Raises MaskError where an operand that the mask needs is missing.
        """
        q, k = _rows(q_positions)[:, :, None], _rows(kv_positions)[:, None, :]
        q_ids = None if q_segments is None else _rows(q_segments)[:, :, None]
        k_ids = None if kv_segments is None else _rows(kv_segments)[:, None, :]
        prefix = None if prefix_lengths is None else prefix_lengths[:, None, None]
        ahead = None if lookahead is None else _rows(lookahead)[:, :, None]
        return self.visible(q, k, q_ids, k_ids, prefix, lookahead=ahead)

    def visible(
        self,
        q: jax.Array,
        k: jax.Array,
        q_segments: jax.Array | None = None,
        k_segments: jax.Array | None = None,
        prefix: Any = None,
        divide: Callable[[jax.Array, int], jax.Array] = operator.floordiv,
        lookahead: jax.Array | None = None,
    ) -> jax.Array | None:
        """Returns which pairs are allowed, of positions, segments and prefix lengths that broadcast; None for all.

        `divide` is how positions are divided by a chunk's size, rounding down. Raises MaskError as `allowed` does.
        """
        result = self._by_position(q, k, divide, lookahead)
        for group in self.any_of:
            members = [member.visible(q, k, q_segments, k_segments, prefix, divide, lookahead) for member in group]
            limits = [member for member in members if member is not None]
            # None allows everything, and so does a group with one such mask.
            if len(limits) == len(members):
                result = _both(result, functools.reduce(operator.or_, limits))
        if self.prefix:
            within = k < _needed(prefix, "prefix", "prefix_lengths")
            result = within if self.is_lone_prefix else None if result is None else result | within
        if self.segments:
            q_ids = _needed(q_segments, "segments", "q_segment_ids")
            result = _both(result, q_ids == _needed(k_segments, "segments", "kv_segment_ids"))
        return result

    def _by_position(
        self,
        q: jax.Array,
        k: jax.Array,
        divide: Callable[[jax.Array, int], jax.Array],
        lookahead: jax.Array | None,
    ) -> jax.Array | None:
        """Returns the conjunction of the conditions on positions alone; None if there is none."""
        end = q if lookahead is None else q + lookahead
        result = (k <= end) if self.causal else None
        if self.window is not None:
            left, right = self.window
            if left is not None:
                result = _both(result, k >= q - left)
            if right is not None:
                result = _both(result, k <= q + right)
        if self.chunk is not None:
            result = _both(result, divide(q, self.chunk) == divide(k, self.chunk))
        for name in self.predicates:
            result = _both(result, _predicate(name)(q, k))
        return result

    def describe(self) -> str:
        """Returns the mask as short text, such as "causal&window(1023,None)&segments"."""
        parts = ["causal"] * self.causal
        if self.window is not None:
            parts.append(f"window({self.window[0]},{self.window[1]})")
        if self.chunk is not None:
            parts.append(f"chunk({self.chunk})")
        parts += self.predicates
        parts += ["(" + "|".join(m.describe() for m in group) + ")" for group in self.any_of]
        if self.prefix:
            parts = [f"({'&'.join(parts)}|prefix)" if parts else "prefix"]
        parts += ["segments"] * self.segments
        return "&".join(parts) or "full"


FULL = MaskSpec()
CAUSAL = MaskSpec(causal=True)


def sliding_window(size: int) -> MaskSpec:
    """Returns the causal mask over the last `size` positions, the query's own included."""
    return MaskSpec(causal=True, window=(size - 1, None))


def _as_group(mask: MaskSpec) -> MaskSpec:
    return MaskSpec(segments=mask.segments, any_of=((mask.without_segments,),))


def _narrower(
    a: tuple[int | None, int | None] | None, b: tuple[int | None, int | None] | None
) -> tuple[int | None, int | None] | None:
    if a is None or b is None:
        return a or b
    sides = [[side for side in pair if side is not None] for pair in zip(a, b, strict=True)]
    left, right = (min(side) if side else None for side in sides)
    return left, right


def _both(a: jax.Array | None, b: jax.Array) -> jax.Array:
    return b if a is None else a & b


def _rows(x: jax.Array) -> jax.Array:
    return x if x.ndim == 2 else x[None]


def _needed(value: jax.Array | None, condition: str, operand: str) -> jax.Array:
    if value is None:
        message = f"the mask has {condition} but there is no {operand}; pass {operand}="
        raise MaskError(message)
    return value


def _predicate(name: str) -> Any:
    function = component("masks", name)
    if len(inspect.signature(function).parameters) != 2:
        message = f"mask predicate {name!r} must take (query positions, key positions)"
        raise MaskError(message)
    return function


def dilated(q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
    """Returns where the distance is even: every second key (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    q_positions: int [..., T, 1]; kv_positions: int [..., 1, S]. Operators alone, so that it runs inside any kernel.
    """
    # `& 1` is also right for negative distances, and no division, which some accelerators emulate.
    return ((q_positions - kv_positions) & 1) == 0


def unfit(mask: MaskSpec, elementwise: frozenset[str], language: str) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can.

    elementwise: the primitives that the kernel's language has for numbers of a tile.
    """
    reasons = [_unfit(name, elementwise, language) for name in mask.predicates]
    reasons += [unfit(inner, elementwise, language) for group in mask.any_of for inner in group]
    return "; ".join(reason for reason in reasons if reason)


@functools.lru_cache(maxsize=256)
def _unfit(name: str, elementwise: frozenset[str], language: str) -> str:
    positions = (jax.ShapeDtypeStruct((1, 16, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 16), jnp.int32))
    traced = jax.make_jaxpr(component("masks", name))(*positions)
    if traced.consts:
        return f"predicate {name!r} reads an array of its own; a kernel only sees positions"
    foreign = sorted(_primitives(traced.jaxpr) - elementwise)
    return f"predicate {name!r} uses {', '.join(foreign)}, which no {language} kernel has" if foreign else ""


def _primitives(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    names: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            names |= _primitives(equation.params["jaxpr"].jaxpr)
        else:
            names.add(equation.primitive.name)
    return names
