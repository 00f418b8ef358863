"""The arrays every kind of key-value cache keeps: `keys`, and `values` unless they are part of the keys."""

import jax
import kanawa as kn
from kanawa.contracts import Cache


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


def kept_arrays(k: jax.Array, v: jax.Array | None) -> dict[str, jax.Array]:
    """Returns new keys and values under the names they are kept by."""
    return {"keys": k} if v is None else {"keys": k, "values": v}
