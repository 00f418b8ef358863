"""A dense key-value cache: one row of fixed length for each sequence, slot index = position."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences

from kanawa_layers.attention.cache_arrays import arrays_by_name, layout, put_rows, take_rows, write_after


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
