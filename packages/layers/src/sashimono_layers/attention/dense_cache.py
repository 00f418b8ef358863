"""A dense key-value cache: one row of fixed length for each sequence, slot index = position."""

import jax
import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float
from sashimono.contracts import Cache, CacheState, CacheView, Sequences


class DenseCache(Cache):
    """Keys [rows, length, kv_heads, head_dim] and values likewise, in the cache's dtype."""

    class Config(Cache.Config):
        """Nothing beyond the shapes the attention layer gives."""

    @sm.nowrap
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, sm.ParamSpec]:
        """Returns the layout of `keys` and `values`."""
        cfg, axes = self.config, ("batch", "kv_length", "kv_heads", "head_dim")

        def array(width: int) -> sm.ParamSpec:
            shape = (rows, length, cfg.num_kv_heads, width)
            return sm.ParamSpec(shape, axes, dtype, sm.zeros)

        return {"keys": array(cfg.key_dim), "values": array(cfg.value_dim)}

    def extend(
        self,
        state: CacheState,
        k: Float[Array, "B T K D"],
        v: Float[Array, "B T K D"],
        sequences: Sequences,
    ) -> CacheView:
        """Writes the new tokens at `sequences.lengths`; what lies past a row's length is rubbish that causality hides.

        A scalar length writes one slice; a length per row writes one slice a row, a scatter.
        """
        lengths = sequences.lengths
        if lengths is None:
            lengths = jnp.zeros((), jnp.int32)

        def write(cache: jax.Array, new: jax.Array) -> jax.Array:
            new = new.astype(cache.dtype)
            if lengths.ndim == 0:
                return jax.lax.dynamic_update_slice_in_dim(cache, new, lengths, axis=1)
            update = jax.vmap(lambda row, n, at: jax.lax.dynamic_update_slice_in_dim(row, n, at, 0))
            return update(cache, new, lengths)

        updated = {"keys": write(state["keys"], k), "values": write(state["values"], v)}
        return CacheView(updated, updated["keys"], updated["values"], None)
