"""Sigmoid attention (Ramapuram et al. 2024, arXiv:2409.04431): each key is weighed on its own, without a softmax."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from kanawa.config import Size
from kanawa.contracts import CacheView, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels import MaskSpec

from kanawa_layers.attention.dot_product import DotProduct, check_mask_of_cache, key_positions, query_segments


class SigmoidDotProduct(DotProduct):
    """sigmoid(scores - ln(length)) in fp32, times values; plain JAX, which holds all scores [B, H, T, S].

    `length` is the usual number of keys: with it the weights of a query sum to about 1 at the start.
    """

    class Config(DotProduct.Config):
        length: Size = 2048

    def forward(
        self,
        q: Float[Array, "B T H D"],
        keys: CacheView,
        mask: MaskSpec,
        sequences: Sequences,
        positions: Int[Array, "B T"],
        bias: Float[Array, "B H T S"] | None = None,
        sinks: Float[Array, " H"] | None = None,
        kv_segment_ids: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B T H V"]:
        """Returns the weighted values; raises ModuleError for sinks and ragged rows, which it doesn't support."""
        if sinks is not None or sequences.query_starts is not None:
            unknown = "sinks, which belong to a softmax" if sinks is not None else "query_starts (a ragged row)"
            message = f"{self.path}: sigmoid attention doesn't support {unknown}"
            raise ModuleError(message)
        cfg, k, v = self.config, *_dense(keys, q.dtype)
        group = q.shape[2] // k.shape[2]
        # [B, S, K, D] -> [B, S, H, D]: query head h reads key head h // group, the order every kernel uses.
        k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
        scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) * cfg.scale
        if cfg.logit_cap is not None:
            scores = cfg.logit_cap * jnp.tanh(scores / cfg.logit_cap)
        scores = scores if bias is None else scores + bias.astype(jnp.float32)
        # Without the shift a row of n keys would sum to n / 2 at the start, and the stream with it.
        weights = jax.nn.sigmoid(scores - math.log(cfg.length))
        allowed = _allowed(q, keys, mask, sequences, positions, kv_segment_ids)
        # Zeroed after the sigmoid: without a normaliser there is no need for scores of minus infinity.
        weights = weights if allowed is None else jnp.where(allowed[:, None], weights, 0.0)
        return jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v)


def _dense(keys: CacheView, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values [B, S, K, D], gathered where they are paged; integers are bits of `dtype`."""
    v = keys.k if keys.v is None else keys.v
    if keys.page_table is None:
        return keys.k, v
    k, v = (pool[keys.page_table] for pool in (keys.k, v))
    if k.dtype == jnp.uint16:
        k, v = (jax.lax.bitcast_convert_type(x, dtype) for x in (k, v))
    return k.reshape(k.shape[0], -1, *k.shape[3:]), v.reshape(v.shape[0], -1, *v.shape[3:])


def _allowed(
    q: jax.Array,
    keys: CacheView,
    mask: MaskSpec,
    sequences: Sequences,
    positions: jax.Array,
    kv_segment_ids: jax.Array | None,
) -> Bool[Array, "B T S"] | None:
    """Returns which keys each query may see; None for all."""
    prefix = sequences.prefix_lengths
    if keys.state is not None:
        check_mask_of_cache(keys, mask)
        kv_positions = key_positions(keys)
        seen = mask.allowed(positions, kv_positions, prefix_lengths=prefix)
        if keys.kv_lengths is None or mask.causal and not mask.needs_prefix:
            return seen
        exists = kv_positions[:, None, :] < keys.kv_lengths[:, None, None]
        return exists if seen is None else seen & exists
    q_ids = query_segments(q, sequences, kv_segment_ids)
    if q_ids is not None:
        mask = mask & MaskSpec(segments=True)
    kv_ids = q_ids if kv_segment_ids is None else kv_segment_ids
    kv_positions = positions if kv_segment_ids is None else jnp.arange(keys.k.shape[1], dtype=jnp.int32)[None]
    return mask.allowed(positions, kv_positions, q_ids, kv_ids, prefix)
