"""A mask on scores inside a kernel, 128 lanes at a time, in either orientation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles
from kanawa_backends_tpu.kernels.attention.flash.visibility import both, visible

LANES = 128
#: A score that the mask hides: finite, so that the difference of two of them is none to worry about.
HIDDEN = -0.7 * 3.4028235e38


@dataclass(frozen=True)
class Masking:
    """Hides scores of a block.

    Attributes:
        queries_down: queries lie along sublanes and keys along lanes, as the forward kernel has them; or the reverse.
        down, across: references to positions and segment ids: [n, 128], equal along lanes, of what lies along
            sublanes, and [1, n] of the other, by "positions" and "segments", if they are operands.
        first_down, first_across: index of the block's first query or key.
        prefix: the row's prefix length, if the mask has one.
    """

    tiles: Tiles
    queries_down: bool
    down: Mapping[str, Any]
    across: Mapping[str, Any]
    first_down: Any
    first_across: Any
    prefix: Any

    def __call__(self, scores: jax.Array, start_down: Any, start_across: Any) -> jax.Array:
        """Returns scores [n, m] of a part of the block that starts there, what is hidden being `HIDDEN`."""
        rows, width = scores.shape
        pieces = []
        for lane in range(0, width, LANES):
            piece = scores[:, lane : lane + LANES]
            seen = self._visible(rows, start_down, start_across + lane)
            pieces.append(piece if seen is None else jnp.where(seen, piece, HIDDEN))
        return jnp.concatenate(pieces, axis=1)

    def _visible(self, rows: int, start_down: Any, start_across: Any) -> jax.Array | None:
        from jax.experimental import pallas as pl

        down, across = pl.ds(start_down, rows), pl.ds(start_across, LANES)

        def indices() -> tuple[jax.Array, jax.Array]:
            along = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 0) + (self.first_down + start_down)
            lane = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 1) + (self.first_across + start_across)
            return along, lane

        if "positions" in self.down:
            pair = self.down["positions"][down, :], self.across["positions"][:, across]
        else:
            pair = indices()
        q, k = pair if self.queries_down else pair[::-1]
        seen = visible(self.tiles.mask, q, k, self.prefix)
        if "segments" in self.down:
            seen = both(seen, self.down["segments"][down, :] == self.across["segments"][:, across])
        kv = self.tiles.kv
        if kv.padded != kv.length:
            seen = both(seen, indices()[1 if self.queries_down else 0] < kv.length)
        return seen
