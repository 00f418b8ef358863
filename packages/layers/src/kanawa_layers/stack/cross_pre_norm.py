"""A decoder's block with a memory: self attention, cross attention, feed-forward, each normalised at its input."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, FeedForward, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.rms_norm import RMSNorm
from kanawa_layers.stack.residual import Residual

_BRANCHES = ("attention", "cross_attention", "feed_forward")


class CrossPreNormBlock(Block):
    """x + branch(norm(x)) three times, as in T5's decoder (Raffel et al. 2020, arXiv:1910.10683).

    Its cache holds one of each attention, under the branch's name.
    """

    class Config(Block.Config):
        attention: SequenceMixer.Config = kn.REQUIRED
        cross_attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward: FeedForward.Config = kn.REQUIRED
        attention_norm: Norm.Config = RMSNorm.Config()
        cross_attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        attention_residual: Residual.Config = Residual.Config()
        cross_attention_residual: Residual.Config = Residual.Config()
        feed_forward_residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "attention": "self_attn",
                "cross_attention": "encoder_attn",
                "feed_forward": "mlp",
                "attention_norm": "self_attn_layer_norm",
                "cross_attention_norm": "encoder_attn_layer_norm",
                "feed_forward_norm": "final_layer_norm",
                "attention_residual": "attention_residual",
                "cross_attention_residual": "cross_attention_residual",
                "feed_forward_residual": "feed_forward_residual",
            }
        )

    def setup(self) -> None:
        """Declares the branches with their norms."""
        for branch in _BRANCHES:
            for name in (branch, f"{branch}_norm", f"{branch}_residual"):
                self.add_child(name, getattr(self.config, name), input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after the three branches, and both caches."""
        own, cross = (None, None) if cache is None else (cache["attention"], cache["cross_attention"])
        y, own = self.attention(self.attention_norm(x), sequences, own)
        x = self.attention_residual(x, y)
        y, cross = self.cross_attention(self.cross_attention_norm(x), sequences, cross)
        x = self.cross_attention_residual(x, y)
        x = self.feed_forward_residual(x, self.feed_forward(self.feed_forward_norm(x), sequences))
        return x, None if cache is None else {"attention": own, "cross_attention": cross}

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layout of both attentions' caches."""
        return {name: getattr(self, name).cache_spec(rows, length, dtype) for name in _BRANCHES[:2]}
