"""A ring of keys and values: as many entries as the mask reaches back, however long the sequence gets."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Int, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences

from kanawa_layers.attention.dense_cache import (
    arrays_by_name,
    confine_nonfinite,
    layout,
    put_rows,
    take_rows,
    write_after,
)

#: The position of an empty entry: after every query, so that causality hides it.
_NOWHERE = 2**30


class RingCache(Cache):
    """Position p is in entry p modulo the mask's reach; without a bound on it, the ring is as long as the row.

    The entries' positions follow from the row's length, so only keys and values are stored. Padding (segment id 0)
    isn't written: it would overwrite tokens that are still visible.
    """

    exact = True

    @kn.nowrap
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of `keys` and `values`, [rows, min(length, reach), kv_heads, width]."""
        # A ring longer than the row would only hold entries that are never written.
        size = min(length, self.config.reach or length)
        return layout(self.config, (rows, size), ("batch", None), dtype)

    def extend(
        self,
        state: CacheState,
        k: Num[Array, "B T K D"],
        v: Num[Array, "B T K D"] | None,
        sequences: Sequences,
    ) -> CacheView:
        """Writes the last of the new tokens; several of them are attended to together with the old entries."""
        # A ring has no end: entries of an earlier sequence are masked, but still read.
        old, new = take_rows(state, sequences), arrays_by_name(*confine_nonfinite(k, v))
        size = old["keys"].shape[1]
        lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
        if k.shape[1] == 1:
            # One new token overwrites the key that has just left the window, so it may be written first.
            rows = {name: write_after(old[name], array, lengths % size) for name, array in new.items()}
            positions = _entry_positions(jnp.atleast_1d(lengths) + 1, size)
            return CacheView(put_rows(state, rows, sequences), rows["keys"], rows.get("values"), positions)
        lengths = jnp.broadcast_to(lengths, k.shape[:1])
        positions = lengths[:, None] + jnp.arange(k.shape[1], dtype=jnp.int32)[None]
        real = jnp.ones(positions.shape, bool) if sequences.segment_ids is None else sequences.segment_ids != 0
        # Of several new tokens, the last would overwrite keys that the first still sees: they attend to old and new
        # keys concatenated, and the ring is written separately.
        entries = _entries_to_write(positions, real, size)
        # mode="drop" with an entry past the end skips padding and overwritten tokens.
        rows = {name: jax.vmap(_written)(old[name], entries, array) for name, array in new.items()}
        seen = {name: jnp.concatenate([old[name], new[name].astype(old[name].dtype)], 1) for name in new}
        seen_at = [_entry_positions(lengths, size), jnp.where(real, positions, _NOWHERE)]
        kv_positions = jnp.concatenate(seen_at, axis=1)
        return CacheView(put_rows(state, rows, sequences), seen["keys"], seen.get("values"), kv_positions)


def _entry_positions(lengths: Int[Array, " B"], size: int) -> Int[Array, "B size"]:
    """Returns the position each entry holds in rows of these lengths: the last one that falls on it."""
    last = lengths[:, None] - 1
    # Entry e holds the largest p <= last with p = e (mod size). JAX's % takes the divisor's sign, so it's never below
    # 0.
    held = last - (last - jnp.arange(size, dtype=jnp.int32)[None]) % size
    return jnp.where(held < 0, _NOWHERE, held)


def _entries_to_write(positions: Int[Array, "B T"], real: Bool[Array, "B T"], size: int) -> Int[Array, "B T"]:
    """Returns the entry of each token, or `size` for padding and for tokens that a later one of the call overwrites."""
    # A scatter to one entry twice has no defined winner: only the last `size` real tokens are written at all.
    after = jnp.max(jnp.where(real, positions + 1, 0), axis=1, keepdims=True)
    return jnp.where(real & (positions >= after - size), positions % size, size)


def _written(row: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
    return row.at[at].set(new.astype(row.dtype), mode="drop")
