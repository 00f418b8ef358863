"""Rows of a cache that a batch uses: `Sequences.slots` picks them out and puts them back."""

import functools

import jax
from kanawa.contracts import CacheState, Sequences


def take_rows(state: CacheState, sequences: Sequences) -> CacheState:
    """Returns the cache rows of this batch; all of them without slots."""
    slots = sequences.slots
    return state if slots is None else jax.tree.map(lambda array: array[slots], state)


def put_rows(state: CacheState, rows: CacheState, sequences: Sequences) -> CacheState:
    """Returns the whole cache with this batch's rows written back."""
    slots = sequences.slots
    return rows if slots is None else jax.tree.map(lambda array, new: array.at[slots].set(new), state, rows)


def write_after(cache: jax.Array, new: jax.Array, lengths: jax.Array) -> jax.Array:
    """Returns cache [B, S, …] with new [B, T, …] at positions lengths, lengths + 1, … of each row.

    A scalar length writes one slice; a length per row writes one slice a row, a scatter.
    """
    # An update slice needs the cache's dtype.
    new = new.astype(cache.dtype)
    # XLA shifts a slice that would pass the end, which overwrites older tokens: a cache must be as long as its row.
    if lengths.ndim == 0:
        return jax.lax.dynamic_update_slice_in_dim(cache, new, lengths, axis=1)
    update = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
    return jax.vmap(update)(cache, new, lengths)
