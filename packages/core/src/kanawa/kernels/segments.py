"""Segments as a recurrence sees them: where its state starts anew, and which tokens are no tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Segments(NamedTuple):
    """Of every token: how many resets came before or at it in its row, and whether it is real.

    Attributes:
        resets: int32 [B, T], not decreasing. Two tokens share a state where their counts are equal;
            a state that enters the row is shared by tokens of count 0.
        real: bool [B, T]; False for padding, which leaves the state as it is.
    """

    resets: jax.Array
    real: jax.Array


def segments(segment_ids: jax.Array) -> Segments:
    """Returns the Segments of int ids [B, T], 0 being padding.

    The state resets at a real token whose id isn't that of the real token before it. The first real
    token of a row resets nothing: it continues the state that enters.
    """
    real = segment_ids != 0
    places = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None]
    # Where the last real token up to each place is, -1 before any; padding inside a row is looked past. Shifted by one,
    # it is the last one before the place.
    last_real = jax.lax.cummax(jnp.where(real, places, -1), axis=1)
    before = jnp.pad(last_real[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    # Clamped to 0 for a valid index: what is read there is masked by `before >= 0`.
    previous = jnp.take_along_axis(segment_ids, jnp.maximum(before, 0), axis=1)
    starts = real & (before >= 0) & (previous != segment_ids)
    return Segments(jnp.cumsum(starts.astype(jnp.int32), axis=1), real)
