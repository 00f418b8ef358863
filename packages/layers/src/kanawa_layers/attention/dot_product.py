"""How scores weigh values, a slot of every attention layer: the contract and the usual softmax."""

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
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
    """Softmax over keys, in fp32, through the `attention` operation and its kernels."""

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
            return attention(
                q, keys.k, v, mask=mask, bias=bias, sinks=sinks, alibi_slopes=alibi_slopes,
                scale=cfg.scale, logit_cap=cfg.logit_cap,
                q_positions=placed, kv_positions=placed, prefix_lengths=prefix,
                q_segment_ids=query_segments(q, sequences, kv_segment_ids),
                kv_segment_ids=sequences.segment_ids if kv_segment_ids is None else kv_segment_ids,
            )  # fmt: skip
        check_mask_of_cache(keys, mask)
        paged = keys.page_table is not None
        # Decode kernels support rows whose queries are the last tokens without explicit positions.
        last = sequences.positions is None and keys.kv_positions is None and (paged or q.shape[1] == 1)
        # Causality already hides entries past a row's end, so most masks need no lengths.
        ends = last or paged or not mask.causal or mask.needs_prefix
        return attention(
            q, keys.k, v, mask=mask, bias=bias, sinks=sinks, alibi_slopes=alibi_slopes,
            scale=cfg.scale, logit_cap=cfg.logit_cap, q_positions=None if last else positions,
            kv_positions=None if last or paged else key_positions(keys),
            kv_lengths=keys.kv_lengths if ends else None,
            prefix_lengths=prefix, page_table=keys.page_table,
            query_starts=sequences.query_starts if paged else None,
            mode="decode" if q.shape[1] == 1 else "prefill",
        )  # fmt: skip


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
