"""A dense key-value cache: one row of fixed length for each sequence, slot index = position."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences

from kanawa_layers.attention.cache_layout import kept_arrays, layout
from kanawa_layers.attention.cache_rows import put_rows, take_rows, write_after


class DenseCache(Cache):
    """Keys [rows, length, kv_heads, head_dim] and values likewise, in the cache's dtype."""

    class Config(Cache.Config):
        """Nothing beyond the shapes the attention layer gives."""

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
        """Writes the new tokens at `sequences.lengths`; what lies past a row's length is rubbish that causality hides.

        A mask that isn't causal is told where each row ends.
        """
        lengths = jnp.zeros((), jnp.int32) if sequences.lengths is None else sequences.lengths
        rows = take_rows(state, sequences)
        rows = {name: write_after(rows[name], new, lengths) for name, new in kept_arrays(k, v).items()}
        # Right-padded prompts count as written; tokens decoded next overwrite what is past a row's real end.
        ends = jnp.broadcast_to(lengths + k.shape[1], (k.shape[0],))
        return CacheView(put_rows(state, rows, sequences), rows["keys"], rows.get("values"), kv_lengths=ends)
