"""From the residual stream to queries, keys and values: three weights, or one fused weight that shards alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm
from kanawa.errors import ModuleError

#: Llama's names of an attention layer's parts, as far as they have any.
NAMES = {
    **{"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"},
    **{"query_norm": "q_norm", "key_norm": "k_norm", "sinks": "", "gate": "gate_proj"},
}


def head_width(channels: int, heads: int, path: str, *, own: bool = False) -> int:
    """Returns channels / heads; raises ModuleError where it isn't whole, which `own` says a width of its own spares."""
    if channels % heads == 0:
        return channels // heads
    near = [h for h in range(heads, channels + 1) if channels % h == 0][:1]
    below = [h for h in range(heads, 0, -1) if channels % h == 0][:1]
    message = f"{path}: {channels} channels don't divide into {heads} heads; {below[0]} or {near[0]} heads would fit"
    raise ModuleError(message + " (or set head_dim)" * own)


def head_dim_of(layer: kn.Module) -> int:
    """Returns the width of a layer's heads: the one its config sets, or its share of the channels."""
    cfg = layer.config
    return cfg.head_dim or head_width(cfg.input_dim, cfg.num_heads, layer.path, own=True)


class Heads(NamedTuple):
    """Head counts and widths of an attention layer."""

    input_dim: int
    heads: int
    kv_heads: int
    head_dim: int

    def norm_widths(self, all_heads: bool) -> tuple[int, int]:
        """Returns what norms of queries and of keys span: one head, or all of them (OLMo 2)."""
        return (self.heads * self.head_dim, self.kv_heads * self.head_dim) if all_heads else (self.head_dim,) * 2


def add_projections(
    layer: kn.Module, cfg: Any, heads: Heads, memory_dim: int | None = None, *, own_keys: bool = True
) -> None:
    """Declares `query`, `key` and `value` (from `memory_dim`, where set; none without `own_keys`), and `output`."""
    for name, count, axis, inputs in (
        ("query", heads.heads, "heads", heads.input_dim),
        ("key", heads.kv_heads, "kv_heads", memory_dim or heads.input_dim),
        ("value", heads.kv_heads, "kv_heads", memory_dim or heads.input_dim),
    ):
        layer.add_child(
            name,
            getattr(cfg, name) if own_keys or name == "query" else None,
            input_shape=(inputs,),
            output_shape=(count, heads.head_dim),
            axes=("embed", axis, "head_dim"),
        )
    add_output(layer, cfg, heads)


def add_fused_projections(layer: Any, cfg: Any, heads: Heads) -> None:
    """Declares `qkv` in place of the three, and `output`.

    The fused weight is [embed, kv_heads, heads / kv_heads + 2, head_dim]: each key head is stored with its queries and
    its value, so that tensor parallelism splits all three by the same axis.
    """
    layer.add_child(
        "qkv",
        cfg.qkv,
        input_shape=(heads.input_dim,),
        output_shape=(heads.kv_heads, heads.heads // heads.kv_heads + 2, heads.head_dim),
        axes=("embed", "kv_heads", None, "head_dim"),
    )
    layer.qkv.mark_parts(2, (heads.heads // heads.kv_heads, 1, 1))
    for name in ("query", "key", "value"):
        layer.add_child(name, None)
    add_output(layer, cfg, heads)


def add_output(layer: kn.Module, cfg: Any, heads: Heads) -> None:
    """Declares the projection of all heads back to the stream."""
    layer.add_child(
        "output",
        cfg.output,
        input_shape=(heads.heads, heads.head_dim),
        output_shape=(heads.input_dim,),
        axes=("heads", "head_dim", "embed"),
    )


def project(layer: Any, x: Float[Array, "B T E"]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries [B, T, H, D], keys and values [B, T, K, D]."""
    if layer.qkv is None:
        return layer.query(x), layer.key(x), layer.value(x)
    fused = layer.qkv(x)
    batch, length, kv_heads, parts, width = fused.shape
    # [K, H / K] flattens to query heads in the order in which attention groups them, so no head moves between devices.
    q = fused[:, :, :, : parts - 2].reshape(batch, length, kv_heads * (parts - 2), width)
    return q, fused[:, :, :, parts - 2], fused[:, :, :, parts - 1]


def fuse_projections(params: Mapping[str, Any], kv_heads: int) -> dict[str, Any]:
    """Returns parameters with `qkv` in place of the three, laid out as `add_fused_projections` says."""

    def fused(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        # Leading axes are inputs, the layers of a stack, or none for a bias.
        q, k, v = (x.reshape(*x.shape[:-2], kv_heads, -1, x.shape[-1]) for x in (q, k, v))
        return jnp.concatenate([q, k, v], axis=-2)

    separate = ("query", "key", "value")
    rest = {name: value for name, value in params.items() if name not in separate}
    return {**rest, "qkv": jax.tree.map(fused, *(params[name] for name in separate))}


def normed(norm: Norm, x: Float[Array, "B T H D"], all_heads: bool) -> Float[Array, "B T H D"]:
    """Returns normalised heads, each on its own or all as one vector."""
    if not all_heads:
        return norm(x)
    return norm(x.reshape(*x.shape[:2], -1)).reshape(x.shape)
