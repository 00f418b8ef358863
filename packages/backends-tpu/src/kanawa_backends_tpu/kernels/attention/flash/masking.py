"""What scores of a block are of, and what the mask hides of them, 128 lanes at a time, in either orientation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from kanawa.kernels.mask_reach import predicates_of
from kanawa.kernels.masks import MaskSpec, unfit

#: Primitives of arithmetic that Mosaic lowers element by element for v5e to v7x (libtpu 0.0.52), integer division too.
_ELEMENTWISE = frozenset(
    {"abs", "add", "and", "broadcast_in_dim", "clamp", "clz", "convert_element_type", "cos", "div", "eq", "exp", "exp2"}
    | {"floor", "ge", "gt", "integer_pow", "le", "log", "lt", "max", "min", "mul", "ne", "neg", "not", "or"}
    | {"population_count", "rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic"}
    | {"shift_right_logical", "sign", "sin", "sqrt", "sub", "tanh", "xor"}
)


def unfit_predicates(mask: MaskSpec) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can."""
    return unfit(mask, _ELEMENTWISE, "TPU")


LANES = 128
#: A score that the mask hides: finite, so that the difference of two of them is none to worry about.
HIDDEN = -0.7 * 3.4028235e38


@dataclass(frozen=True)
class Places:
    """Where the queries and keys of a block are.

    Attributes:
        queries_down: queries lie along sublanes and keys along lanes, as the forward kernel has them; or the reverse.
        down, across: references to positions and segment ids: [n, 128], equal along lanes, of what lies along
            sublanes, and [1, n] of the other, by "positions" and "segments", if they are operands.
        first_down, first_across: index of the block's first query or key.
    """

    queries_down: bool
    down: Mapping[str, Any]
    across: Mapping[str, Any]
    first_down: Any
    first_across: Any

    def indices(self, rows: int, start_down: Any, start_across: Any) -> tuple[jax.Array, jax.Array]:
        """Returns which query and which key of their rows, int32 [rows, 128], scores that start there are of."""
        along = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 0) + (self.first_down + start_down)
        lane = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 1) + (self.first_across + start_across)
        return self._ordered(along, lane)

    def positions(self, rows: int, start_down: Any, start_across: Any) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of queries and keys, int32, [rows, 128] or [1, 128]."""
        known = self._operands("positions", rows, start_down, start_across)
        return self.indices(rows, start_down, start_across) if known is None else known

    def segments(self, rows: int, start_down: Any, start_across: Any) -> tuple[Any, Any]:
        """Returns the segment ids of queries and keys; (None, None) where there are none."""
        return self._operands("segments", rows, start_down, start_across) or (None, None)

    def _operands(self, what: str, rows: int, start_down: Any, start_across: Any) -> tuple[jax.Array, jax.Array] | None:
        if what not in self.down:
            return None
        down, across = pl.ds(start_down, rows), pl.ds(start_across, LANES)
        return self._ordered(self.down[what][down, :], self.across[what][:, across])

    def _ordered(self, along: jax.Array, lane: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (along, lane) if self.queries_down else (lane, along)


@dataclass(frozen=True)
class Masking:
    """Hides scores of a block.

    Attributes:
        prefix: the row's prefix length, if the mask has one.
        end: how many keys the row has; None where the block holds no more.
    """

    mask: MaskSpec
    places: Places
    prefix: Any
    end: Any

    def __call__(self, scores: jax.Array, start_down: Any, start_across: Any) -> jax.Array:
        """Returns scores [n, m] of a part of the block that starts there, what is hidden being `HIDDEN`."""
        rows, width = scores.shape
        pieces = []
        for lane in range(0, width, LANES):
            piece = scores[:, lane : lane + LANES]
            seen = self._visible(rows, start_down, start_across + lane)
            pieces.append(piece if seen is None else jnp.where(seen, piece, HIDDEN))
        return jnp.concatenate(pieces, axis=1)

    def existing(self, v: jax.Array, start: Any) -> jax.Array:
        """Returns values [n, D] of the block's keys from `start` on, zero behind the row's end; keys lie across.

        They are weighed with zero, and zero times a NaN that was left in a cache is NaN.
        """
        key = jax.lax.broadcasted_iota(jnp.int32, v.shape, 0) + (self.places.first_across + start)
        # In fp32: the vector units of v5e and older select no 16-bit numbers.
        return jnp.where(key < self.end, v.astype(jnp.float32), 0.0).astype(v.dtype)

    def _visible(self, *at: Any) -> jax.Array | None:
        q, k = self.places.positions(*at)
        if predicates_of(self.mask):
            # A predicate of one side alone would have its shape.
            q, k = jnp.broadcast_arrays(q, k)
        seen = self.mask.visible(q, k, *self.places.segments(*at), self.prefix, divide=_divided)
        if self.end is None:
            return seen
        exists: jax.Array = self.places.indices(*at)[1] < self.end
        return exists if seen is None else seen & exists


def _divided(position: jax.Array, size: int) -> jax.Array:
    # The vector units don't divide integers, which takes them some twenty operations. Exact for positions below 2**22.
    return jnp.floor((position.astype(jnp.float32) + 0.5) / size)
