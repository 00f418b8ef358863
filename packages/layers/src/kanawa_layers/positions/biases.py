"""Positions that are added to scores, ALiBi's slopes or T5's trained buckets, or none."""

import math

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Positions


class NoPositions(Positions):
    """Leaves queries, keys and logits as they are."""


class Alibi(Positions):
    """Adds -slope * |query position - key position| to the logits; no parameters."""

    def bias(
        self, q_positions: Int[Array, "B T"], kv_positions: Int[Array, "B S"], num_heads: int
    ) -> Float[Array, "B H T S"]:
        """Returns the fp32 bias."""
        slopes = self.slopes(num_heads)
        distance = jnp.abs(q_positions[:, :, None] - kv_positions[:, None, :]).astype(jnp.float32)
        return -slopes[None, :, None, None] * distance[:, None]

    def slopes(self, num_heads: int) -> Float[Array, " H"]:
        """Returns the slope of each head, fp32."""
        return jnp.asarray(alibi_slopes(num_heads), jnp.float32)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Returns 2^(-8 i / n) for i = 1 … n; where n isn't a power of two, odd terms for twice as many heads fill up."""
    # As in the paper's code: 2^(-8 i / n) for 12 heads, say, would be other slopes than those of published models.
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4.0 * i / power) for i in range(1, 2 * power, 2)]
    return (*slopes, *between[: num_heads - power])


class RelativeBias(Positions):
    """Adds weight[bucket(key position - query position), head]: one bucket for each near distance, logarithmic ones for
    far distances.

    `bidirectional` (encoders) spends half of the buckets on keys that come after the query.
    """

    class Config(Positions.Config):
        num_buckets: kn.Size = 32
        max_distance: kn.Size = 128
        bidirectional: bool = False
        init_stddev: kn.NonNegative = 0.02
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"weight": "relative_attention_bias.weight"})

    def setup(self) -> None:
        """Declares `weight`, [buckets, heads], never decayed."""
        cfg = self.config
        shape = (cfg.num_buckets, cfg.num_heads)
        self.add_param("weight", shape, axes=(None, "heads"), init=kn.normal(cfg.init_stddev), weight_decay=0.0)

    def bias(
        self, q_positions: Int[Array, "B T"], kv_positions: Int[Array, "B S"], num_heads: int
    ) -> Float[Array, "B H T S"]:
        """Returns the fp32 bias."""
        del num_heads
        cfg = self.config
        relative = kv_positions[:, None, :] - q_positions[:, :, None]
        bucket = relative_bucket(relative, cfg.num_buckets, cfg.max_distance, cfg.bidirectional)
        # [B, T, S, H] -> [B, H, T, S].
        return jnp.moveaxis(jnp.take(self.param("weight", jnp.float32), bucket, axis=0), -1, 1)


class SharedRelativeBias(Positions):
    """The bias of one module that a stack or model shares as `relative_bias`, as T5 does for all of its layers."""

    def bias(
        self, q_positions: Int[Array, "B T"], kv_positions: Int[Array, "B S"], num_heads: int
    ) -> Float[Array, "B H T S"] | None:
        """Returns the shared module's bias."""
        shared: Positions = self.shared_module("relative_bias")
        return shared.bias(q_positions, kv_positions, num_heads)


def relative_bucket(
    relative: Int[Array, "..."], num_buckets: int, max_distance: int, bidirectional: bool
) -> Int[Array, "..."]:
    """Returns the bucket of key position - query position, in [0, num_buckets)."""
    first = jnp.zeros_like(relative)
    if bidirectional:
        # T5's order: keys before the query take the first half of the buckets, keys after it the second.
        num_buckets //= 2
        first = jnp.where(relative > 0, num_buckets, 0).astype(relative.dtype)
        distance = jnp.abs(relative)
    else:
        # Causal: keys after the query are all in bucket 0; the mask hides them.
        distance = jnp.maximum(-relative, 0)
    exact = num_buckets // 2
    # fp32 and then truncated, as T5's own code does: another order of rounding moves distances between buckets.
    far = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = exact + (far * (num_buckets - exact)).astype(relative.dtype)
    return first + jnp.where(distance < exact, distance, jnp.minimum(far, num_buckets - 1))
