"""How scores weigh values, a slot of every attention layer: the contract, the softmax, and a sigmoid of each key."""

import abc
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float, Int
from kanawa.config import Size
from kanawa.contracts import CacheView, Positions, Sequences
from kanawa.errors import ModuleError
from kanawa.kernels import MaskSpec
from kanawa.kernels.attention import attention

#: Parts of a mask that ask for positions themselves, not only for differences within a segment.
_ABSOLUTE = frozenset({"chunk", "predicates", "prefix", "any_of"})


class DotProduct(kn.Module):
    """Attends with queries over keys and values: weights(mask(cap(scale * q k^T) + bias)) v.

    Attributes:
        takes_slopes: `forward` also takes `alibi_slopes` [H], in place of the equivalent bias.
    """

    takes_slopes: ClassVar[bool] = False

    class Config(kn.Module.Config):
        scale: kn.Finite = kn.FROM_PARENT
        logit_cap: kn.Positive | None = kn.FROM_PARENT

    @abc.abstractmethod
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
        """Returns each query's weighted values. `keys.state` is None where the keys come from the same call.

        `kv_segment_ids` are for keys that don't come from the queries' own row.
        """


class SoftmaxDotProduct(DotProduct):
    """Softmax over keys, in fp32, through the `attention` operation and its kernels.

    Emits `weights` [B, H, T, S], which are computed, apart, only where they are asked for.
    """

    takes_slopes: ClassVar[bool] = True

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
        alibi_slopes: Float[Array, " H"] | None = None,
    ) -> Float[Array, "B T H V"]:
        """Returns the softmax-weighted values."""
        cfg = self.config
        # Absorbed latent attention reads one array as both.
        v = keys.k if keys.v is None else keys.v
        prefix = sequences.prefix_lengths if mask.needs_prefix else None
        if keys.state is None:
            # With positions in arrays no kernel knows in advance which blocks a mask hides, so they are passed only
            # where needed: causality and windows depend on differences, which are the same in a packed row.
            placed = positions if sequences.positions is not None and mask.uses & _ABSOLUTE else None
            return self._attend(
                q, keys, v, mask=mask, bias=bias, sinks=sinks, alibi_slopes=alibi_slopes,
                scale=cfg.scale, logit_cap=cfg.logit_cap,
                q_positions=placed, kv_positions=placed, prefix_lengths=prefix, lookahead=sequences.lookahead,
                q_segment_ids=query_segments(q, sequences, kv_segment_ids),
                kv_segment_ids=sequences.segment_ids if kv_segment_ids is None else kv_segment_ids,
            )  # fmt: skip
        check_mask_of_cache(keys, mask)
        paged = keys.page_table is not None
        # Decode kernels support rows whose queries are the last tokens without explicit positions.
        last = sequences.positions is None and keys.kv_positions is None and (paged or q.shape[1] == 1)
        # Causality already hides entries past a row's end, so most masks need no lengths.
        ends = last or paged or not mask.causal or mask.needs_prefix
        return self._attend(
            q, keys, v, mask=mask, bias=bias, sinks=sinks, alibi_slopes=alibi_slopes,
            scale=cfg.scale, logit_cap=cfg.logit_cap, q_positions=None if last else positions,
            kv_positions=None if last or paged else key_positions(keys),
            kv_lengths=keys.kv_lengths if ends else None,
            prefix_lengths=prefix, lookahead=sequences.lookahead, page_table=keys.page_table,
            query_starts=sequences.query_starts if paged else None,
            mode="decode" if q.shape[1] == 1 else "prefill",
        )  # fmt: skip

    def _attend(self, q: jax.Array, keys: CacheView, v: jax.Array, **options: Any) -> Float[Array, "B T H V"]:
        self.emit_made("weights", lambda: attention_weights(q, keys, **options))
        return attention(q, keys.k, v, **options)


def attention_weights(
    q: Float[Array, "B T H D"], keys: CacheView, *, page_table: Any = None, query_starts: Any = None, **options: Any
) -> Float[Array, "B H T S"]:
    """Returns the fp32 weights of softmax attention; `options` are those of `attention`.

    Raises ModuleError for ragged rows, whose queries have keys of their own.
    """
    del page_table
    if query_starts is not None:
        message = "attention weights of a ragged row (query_starts) aren't one array; ask for rows of their own"
        raise ModuleError(message)
    k, _ = _dense(keys, q.dtype)
    # Weighing the rows of the identity gives the weights, by the same mask, bias, cap and sinks.
    length = k.shape[1]
    identity = jnp.broadcast_to(jnp.eye(length)[None, :, None], (k.shape[0], length, k.shape[2], length))
    out = attention(q.astype(jnp.float32), k.astype(jnp.float32), identity, **options)
    return jnp.moveaxis(out, 1, 2)


def score_offsets(
    dot_product: DotProduct,
    by: Positions,
    q_positions: Int[Array, "B T"],
    kv_positions: Int[Array, "B S"],
    num_heads: int,
) -> dict[str, jax.Array | None]:
    """Returns what positions add to scores, as the cheapest argument of `DotProduct.forward`."""
    slopes = by.slopes(num_heads) if dot_product.takes_slopes else None
    if slopes is not None:
        return {"alibi_slopes": slopes}
    return {"bias": by.bias(q_positions, kv_positions, num_heads)}


def query_segments(q: jax.Array, sequences: Sequences, kv_segment_ids: jax.Array | None) -> jax.Array | None:
    """Returns the queries' segment ids, int32 [B, T]; all 1 where only the keys have any."""
    if sequences.segment_ids is not None or kv_segment_ids is None:
        return sequences.segment_ids
    return jnp.ones(q.shape[:2], jnp.int32)


def check_mask_of_cache(keys: CacheView, mask: MaskSpec) -> None:
    """Raises ModuleError where the mask would show empty entries of a cache, which only causality hides."""
    if keys.kv_positions is not None and not mask.causal:
        message = (
            f"the mask {mask.describe()} isn't causal, and only causality hides this cache's empty entries; "
            f"use a dense or paged cache"
        )
        raise ModuleError(message)


def key_positions(keys: CacheView) -> jax.Array:
    """Returns the positions of the keys of each row, int32 [B or 1, S]."""
    if keys.kv_positions is not None:
        return keys.kv_positions
    reach = keys.k.shape[1] * (1 if keys.page_table is None else keys.page_table.shape[1])
    return jnp.arange(reach, dtype=jnp.int32)[None]


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
        weights = self.emit("weights", weights)
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
        seen = mask.allowed(positions, kv_positions, prefix_lengths=prefix, lookahead=sequences.lookahead)
        if keys.kv_lengths is None or mask.causal and not mask.needs_prefix:
            return seen
        exists = kv_positions[:, None, :] < keys.kv_lengths[:, None, None]
        return exists if seen is None else seen & exists
    q_ids = query_segments(q, sequences, kv_segment_ids)
    if q_ids is not None:
        mask = mask & MaskSpec(segments=True)
    kv_ids = q_ids if kv_segment_ids is None else kv_segment_ids
    kv_positions = positions if kv_segment_ids is None else jnp.arange(keys.k.shape[1], dtype=jnp.int32)[None]
    return mask.allowed(positions, kv_positions, q_ids, kv_ids, prefix, sequences.lookahead)
