"""The state of recurrent layers between calls: reading and writing cache rows."""

import jax
import jax.numpy as jnp
from kanawa.contracts import CacheState, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels.segments import Segments, segments

from kanawa_layers.attention.dense_cache import put_rows, take_rows


def entering(cache: CacheState | None, sequences: Sequences, path: str) -> CacheState:
    """Returns this batch's rows of the cache, zeros for rows whose length is 0, whatever they contained.

    Empty without a cache. Raises ModuleError for a ragged row: it holds several sequences, and a state belongs to one.
    """
    if cache is None:
        return {}
    if sequences.query_starts is not None:
        message = (
            f"{path} got one ragged row (query_starts), but has a state for each row: "
            f"use a separate row for every sequence, padded with segment id 0"
        )
        raise ModuleError(message)
    # Slots aren't cleared for a new sequence: causality hides old keys, but not an old state.
    lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths

    def unless_new(x: jax.Array) -> jax.Array:
        new = (lengths == 0).reshape(lengths.shape + (1,) * (x.ndim - lengths.ndim) * lengths.ndim)
        return jnp.where(new, jnp.zeros((), x.dtype), x)

    return {name: unless_new(rows) for name, rows in take_rows(cache, sequences).items()}


def leaving(cache: CacheState | None, rows: CacheState, sequences: Sequences) -> CacheState | None:
    """Returns the whole cache with this batch's rows replaced, in the cache's dtypes; None without a cache."""
    if cache is None:
        return None
    rows = {name: array.astype(cache[name].dtype) for name, array in rows.items()}
    return put_rows(cache, rows, sequences)


def marks(sequences: Sequences) -> Segments | None:
    """Returns where states reset and which tokens are real; None where each row is one unpadded segment."""
    return None if sequences.segment_ids is None else segments(sequences.segment_ids)
