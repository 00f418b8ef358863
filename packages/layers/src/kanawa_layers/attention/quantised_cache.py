"""An int8 cache: a scale for each token and head, over any cache that stores the codes."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import Cache, CacheState, CacheView, Sequences

from kanawa_layers.attention.dense_cache import DenseCache, confine_nonfinite

# Not 128, though int8 has -128: the largest element may be positive.
_LARGEST = 127.0


class QuantisedCache(Cache):
    """Keys and values as int8 codes times an fp32 scale per token and head; errors are at most 1/254 of the largest.

    `codes` and `scales` are two caches of one kind (dense, ring or paged).
    """

    codes: Cache
    scales: Cache

    class Config(Cache.Config):
        codes: Cache.Config = DenseCache.Config()
        scales: Cache.Config = DenseCache.Config()

        def check(self) -> list[str]:
            """Returns what is wrong with the inner caches."""
            # Both get the same sequences; caches of the same kind then write codes and scales to the same entries.
            if type(self.codes) is type(self.scales):
                return []
            return ["codes and scales are caches of different kinds, so their entries would differ"]

    def setup(self) -> None:
        """Declares both caches."""
        cfg = self.config
        shared = {"num_kv_heads": cfg.num_kv_heads, "reach": cfg.reach}
        self.add_child("codes", cfg.codes, key_dim=cfg.key_dim, value_dim=cfg.value_dim, **shared)
        # Without values (latent attention caches keys alone) there are no scales of values.
        self.add_child("scales", cfg.scales, key_dim=1, value_dim=min(cfg.value_dim, 1), **shared)

    @kn.nowrap
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns int8 codes and fp32 scales; `dtype` is what they stand for."""
        del dtype
        parts = {"codes": self.codes.spec(rows, length, "int8"), "scales": self.scales.spec(rows, length, "float32")}
        return {f"{part}_{name}": spec for part, specs in parts.items() for name, spec in specs.items()}

    def extend(
        self,
        state: CacheState,
        k: Num[Array, "B T K D"],
        v: Num[Array, "B T K D"] | None,
        sequences: Sequences,
    ) -> CacheView:
        """Rounds the new tokens and returns all keys and values in the dtype of the new ones."""
        # Done here, since the inner caches only see integers.
        k, v = confine_nonfinite(k, v)
        k_codes, k_scales = _quantised(k)
        v_codes, v_scales = (None, None) if v is None else _quantised(v)
        codes = self.codes.extend(_part(state, "codes_"), k_codes, v_codes, sequences)
        scales = self.scales.extend(_part(state, "scales_"), k_scales, v_scales, sequences)
        codes, scales = _of_the_rows(codes, sequences), _of_the_rows(scales, sequences)
        parts = {"codes_": codes.state or {}, "scales_": scales.state or {}}
        extended = {f"{prefix}{name}": array for prefix, part in parts.items() for name, array in part.items()}
        values = None
        if v is not None and codes.v is not None and scales.v is not None:
            values = _restored(codes.v, scales.v, v.dtype)
        return codes._replace(state=extended, k=_restored(codes.k, scales.k, k.dtype), v=values)


def _of_the_rows(view: CacheView, sequences: Sequences) -> CacheView:
    """Returns a view of pages as one of the rows' own keys [B, S, K, D]; any other view as it is.

    Restoring values before the gather would compute a whole pool for the few pages that are read.
    """
    # A ragged row's sequences have no rows to gather into: there the kernel reads the pool.
    if view.page_table is None or sequences.query_starts is not None:
        return view
    table = jnp.clip(view.page_table, 0, view.k.shape[0] - 1)

    def gathered(pool: jax.Array) -> jax.Array:
        pages = pool[table]
        return pages.reshape(pages.shape[0], -1, *pages.shape[3:])

    v = None if view.v is None else gathered(view.v)
    return view._replace(k=gathered(view.k), v=v, page_table=None)


def _part(state: CacheState, prefix: str) -> CacheState:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def _quantised(x: Float[Array, "B T K D"]) -> tuple[Int[Array, "B T K D"], Float[Array, "B T K 1"]]:
    """Returns int8 codes and the fp32 scale that restores them."""
    x = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / _LARGEST
    # A head of zeros has scale 0: 0 / 0 would be NaN, whose conversion to int8 depends on the hardware.
    codes = jnp.round(x / jnp.where(scale == 0.0, 1.0, scale))
    return codes.astype(jnp.int8), scale


def _restored(codes: jax.Array, scales: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return (codes.astype(jnp.float32) * scales).astype(dtype)
