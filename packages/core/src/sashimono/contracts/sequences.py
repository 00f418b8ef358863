"""What every sequence-mixing layer is told about its tokens. No layer assumes that a row is one sequence."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Int


class Sequences(NamedTuple):
    """Where the tokens of [batch, length] activations sit in their sequences; absent facts are None.

    Without a cache (training): `positions` within the segment (None: 0, 1, 2, …) and `segment_ids` (None: one
    segment a row; 0 is padding). With a cache: `lengths` tokens are already in each row's cache, as [batch], or as
    a scalar where all rows are in step, which lets a cache write one slice instead of a scatter. `slots` maps rows
    to cache rows, `query_starts` gives the ragged layout of a flattened batch, `page_table` the pages of each row.
    """

    positions: Int[Array, "batch length"] | None = None
    segment_ids: Int[Array, "batch length"] | None = None
    lengths: Int[Array, " batch"] | Int[Array, ""] | None = None
    slots: Int[Array, " batch"] | None = None
    query_starts: Int[Array, " batch_plus_one"] | None = None
    page_table: Int[Array, "batch pages"] | None = None

    def token_positions(self, length: int) -> jax.Array:
        """Returns positions that broadcast to [batch, length], int32."""
        if self.positions is not None:
            return self.positions
        counted = jax.numpy.arange(length, dtype=jax.numpy.int32)[None]
        if self.lengths is None:
            return counted
        start = self.lengths if self.lengths.ndim == 0 else self.lengths[:, None]
        return counted + start
