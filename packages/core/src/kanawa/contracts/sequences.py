"""What every sequence-mixing layer knows of its tokens. No layer assumes that a row is one sequence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Sequences(NamedTuple):
    """Where the tokens of [batch, length] activations sit in their sequences; absent facts are None.

    Without a cache (training): `positions` within the segment (None: 0, 1, 2, …) and `segment_ids` (None: one
    segment a row; 0 is padding). With a cache: `lengths` tokens are already in each row's cache, as [batch], or as
    a scalar where all rows are in step, which lets a cache write one slice instead of a scatter; tokens whose
    segment id is 0 pad the end of a row, and a cache may drop them. `slots` maps rows to cache rows, `page_table`
    gives the pages of each row. `query_starts` gives the ragged layout of a flattened batch: one row in which
    sequence i owns tokens query_starts[i] to query_starts[i + 1], with a row of `lengths` and `page_table` each.

    `prefix_lengths` counts the first tokens that a prefix mask shows to everyone. `coordinates` are positions in
    several streams (time, height, width), for rotary embeddings that turn by each. `memory` is what cross attention
    looks at, with segment ids of its own; with a cache it is passed once, and stored. `adapters` is the slot of
    each sequence in the model's adapter pools, counted from 1; 0 is none. `embeddings` take the place of the tokens'
    own where `is_embedded`: those of pictures; channels past the model's width are for its first layers. `lookahead`
    is how many later tokens a causal mask shows each token: the rest of its picture. `condition` is one vector a row
    that blocks are modulated by: what a diffusion model knows of the time and of what it is to make.
    """

    positions: Int[Array, "batch length"] | None = None
    segment_ids: Int[Array, "batch length"] | None = None
    lengths: Int[Array, " batch"] | Int[Array, ""] | None = None
    slots: Int[Array, " batch"] | None = None
    query_starts: Int[Array, " batch_plus_one"] | None = None
    page_table: Int[Array, "batch pages"] | None = None
    prefix_lengths: Int[Array, " batch"] | None = None
    coordinates: Int[Array, "batch length streams"] | None = None
    memory: Float[Array, "batch memory embed"] | None = None
    memory_segment_ids: Int[Array, "batch memory"] | None = None
    adapters: Int[Array, " batch"] | None = None
    embeddings: Float[Array, "batch length embed"] | None = None
    is_embedded: Bool[Array, "batch length"] | None = None
    lookahead: Int[Array, "batch length"] | None = None
    condition: Float[Array, "batch condition"] | None = None

    def token_positions(self, length: int) -> jax.Array:
        """Returns positions that broadcast to [batch, length], int32."""
        if self.positions is not None:
            return self.positions
        counted = jnp.arange(length, dtype=jnp.int32)[None]
        if self.lengths is None:
            return counted
        if self.query_starts is not None:
            owners = self.token_owners(length)
            return counted + (self.lengths - self.query_starts[:-1])[owners][None]
        start = self.lengths if self.lengths.ndim == 0 else self.lengths[:, None]
        return counted + start

    def token_adapters(self, length: int) -> Int[Array, "B length"] | None:
        """Returns the adapter of each token; None where there are none."""
        if self.adapters is None:
            return None
        if self.query_starts is not None:
            return self.adapters[self.token_owners(length)][None]
        return jnp.broadcast_to(self.adapters[:, None], (self.adapters.shape[0], length))

    def token_owners(self, length: int) -> Int[Array, " length"]:
        """Returns the sequence each token of a ragged row belongs to; tokens past the last one get the last."""
        starts = self.query_starts
        if starts is None:
            message = "only rows with query_starts have owners"
            raise ValueError(message)
        # Right of equal starts: a sequence without tokens owns none, and the next one owns its first.
        owners = jnp.searchsorted(starts, jnp.arange(length, dtype=starts.dtype), side="right") - 1
        # Padding past the last sequence gets a valid index; what it computes is thrown away.
        return jnp.clip(owners, 0, starts.shape[0] - 2)


def token_of_each_row(x: Float[Array, "B T E"], last: Int[Array, "*rows"] | None) -> Float[Array, "B some E"]:
    """Returns what belongs to token `last` of each row, [B, 1, E], or for [B, N] to N of them, [B, N, E].

    Everything for None. Take it before the head.
    """
    if last is None:
        return x
    if last.ndim == 2:
        return jnp.take_along_axis(x, last[..., None], axis=1)
    if last.ndim == 0:
        return jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)
    return jnp.take_along_axis(x, last[:, None, None], axis=1)
