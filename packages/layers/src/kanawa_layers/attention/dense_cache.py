"""A dense key-value cache, slot index = position, and the arrays and rows that every key-value cache has."""

import functools

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences


def layout(
    cfg: Cache.Config, leading: tuple[int, ...], leading_axes: tuple[str | None, ...], dtype: str
) -> dict[str, kn.ParamSpec]:
    """Returns the spec of arrays [*leading, kv_heads, width]."""
    widths = {"keys": cfg.key_dim, "values": cfg.value_dim}
    axes = (*leading_axes, "kv_heads", "head_dim")
    return {
        name: kn.ParamSpec((*leading, cfg.num_kv_heads, width), axes, dtype, kn.zeros)
        for name, width in widths.items()
        if width
    }


def arrays_by_name(k: jax.Array, v: jax.Array | None) -> dict[str, jax.Array]:
    """Returns new keys and values under their names in the cache."""
    return {"keys": k} if v is None else {"keys": k, "values": v}


def confine_nonfinite(k: jax.Array, v: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    """Returns new keys and values [B, T, K, D] in which non-finite values affect only tokens that attend to them.

    Kernels multiply a masked value by zero, and zero times NaN is NaN: in a pool whose pages are reused, one row's NaN
    would reach the page's next owner. Scores of masked keys are replaced, so such a token gets a key of NaN and a value
    of zero. Where keys are also the values, it gets the largest number of its dtype.
    """
    if not jnp.issubdtype(k.dtype, jnp.floating):
        return k, v
    if v is None:
        finite = jnp.all(jnp.isfinite(k), axis=-1, keepdims=True)
        return jnp.where(finite, k, jnp.finfo(k.dtype).max), None
    finite = jnp.all(jnp.isfinite(v), axis=-1, keepdims=True)
    return jnp.where(finite, k, jnp.nan), jnp.where(finite, v, jnp.zeros((), v.dtype))


def take_rows(state: CacheState, sequences: Sequences) -> CacheState:
    """Returns the cache rows of this batch, those of `Sequences.slots`; all of them without slots."""
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


class DenseCache(Cache):
    """Keys [rows, length, kv_heads, head_dim] and values likewise, in the cache's dtype."""

    exact = True

    @kn.nowrap
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of `keys` and `values`."""
        return layout(self.config, (rows, length), ("batch", "kv_length"), dtype)

    def extend(
        self,
        state: CacheState,
        k: Num[Array, "B T K D"],
        v: Num[Array, "B T K D"] | None,
        sequences: Sequences,
    ) -> CacheView:
        """Writes the new tokens at `sequences.lengths`; causality hides arbitrary entries past a row's length.

        A mask that isn't causal gets the rows' lengths.
        """
        lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
        rows = take_rows(state, sequences)
        rows = {name: write_after(rows[name], new, lengths) for name, new in arrays_by_name(k, v).items()}
        # Padding at a prompt's right end is written too; tokens decoded next overwrite it.
        ends = jnp.broadcast_to(lengths + k.shape[1], (k.shape[0],))
        return CacheView(put_rows(state, rows, sequences), rows["keys"], rows.get("values"), kv_lengths=ends)
