"""Merging attention over disjoint sets of keys by log-sum-exp, for blockwise and ring attention.

Legend: B rows, T queries, H heads, D value width. A row that saw no key has out 0 and log-sum-exp -inf.
"""

import jax
import jax.numpy as jnp


def merge(out_a: jax.Array, lse_a: jax.Array, out_b: jax.Array, lse_b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (out, log-sum-exp) over the keys of both, in fp32.

    out: [B, T, H, D]; lse: fp32 [B, H, T]. Associative and commutative up to rounding.
    """
    lse = jnp.logaddexp(lse_a, lse_b)
    weight_a, weight_b = _weight(lse_a, lse), _weight(lse_b, lse)
    return out_a.astype(jnp.float32) * weight_a + out_b.astype(jnp.float32) * weight_b, lse


def merge_sinks(out: jax.Array, lse: jax.Array, sinks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (out, log-sum-exp) with each head's sink [H] added to the softmax, in fp32.

    Add sinks once, after all keys: block kernels are called without them.
    """
    total = jnp.logaddexp(lse, sinks.astype(jnp.float32)[None, :, None])
    return out.astype(jnp.float32) * _weight(lse, total), total


def _weight(part: jax.Array, total: jax.Array) -> jax.Array:
    """Returns exp(part - total), 0 where the part is empty, as [B, T, H, 1]."""
    # Where both are empty, -inf - -inf would be NaN, and NaN * 0 stays NaN.
    difference = jnp.where(jnp.isneginf(part), -jnp.inf, part - total)
    return jnp.exp(difference).transpose(0, 2, 1)[..., None]
