"""A decoder's block with a memory: self attention, cross attention, feed-forward, each normalised at its input."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheState, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.stack.residual import Residual
from kanawa_layers.stack.residual_blocks import BRANCH_NAMES, RESIDUAL_NAMES, ResidualBlock

_MIXERS = ("attention", "cross_attention")


class CrossPreNormBlock(ResidualBlock):
    """x + branch(norm(x)) three times, as in T5's decoder (Raffel et al. 2020, arXiv:1910.10683).

    Its cache holds one of each attention, under the branch's name. Emits `cross_attention_output` as well.
    """

    cross_attention: SequenceMixer
    attention_norm: Norm
    cross_attention_norm: Norm
    feed_forward_norm: Norm
    cross_attention_residual: Residual

    class Config(ResidualBlock.Config):
        cross_attention: SequenceMixer.Config = kn.REQUIRED
        attention_norm: Norm.Config = RMSNorm.Config()
        cross_attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        cross_attention_residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                # BART's names; T5's own come with its recipe.
                "cross_attention": "encoder_attn",
                "attention_norm": "self_attn_layer_norm",
                "cross_attention_norm": "encoder_attn_layer_norm",
                "feed_forward_norm": "final_layer_norm",
                "cross_attention_residual": "cross_attention_residual",
                **RESIDUAL_NAMES,
            }
        )

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after the three branches, and both caches."""
        extended = {}
        for branch in _MIXERS:
            x, extended[branch] = self._mixed(branch, x, sequences, None if cache is None else cache[branch])
        return self._transformed(x, sequences), None if cache is None else extended

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layout of both attentions' caches."""
        return {name: getattr(self, name).cache_spec(rows, length, dtype) for name in _MIXERS}
