"""Post-norm block: norm(x + attention(x)), then norm(x + feed_forward(x)), as in BERT."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, FeedForward, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.layer_norm import LayerNorm
from kanawa_layers.stack.residual import Residual

_CHILDREN = (
    "attention",
    "feed_forward",
    "attention_norm",
    "feed_forward_norm",
    "attention_residual",
    "feed_forward_residual",
)


class PostNormBlock(Block):
    """The original transformer's block (Vaswani et al. 2017, arXiv:1706.03762): the stream itself is normalised."""

    class Config(Block.Config):
        attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward: FeedForward.Config = kn.REQUIRED
        attention_norm: Norm.Config = LayerNorm.Config()
        feed_forward_norm: Norm.Config = LayerNorm.Config()
        attention_residual: Residual.Config = Residual.Config()
        feed_forward_residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "attention": "attention",
                "feed_forward": "",
                "attention_norm": "attention.output.LayerNorm",
                "feed_forward_norm": "output.LayerNorm",
                "attention_residual": "attention_residual",
                "feed_forward_residual": "feed_forward_residual",
            }
        )

    def setup(self) -> None:
        """Declares both branches with their norms."""
        for name in _CHILDREN:
            self.add_child(name, getattr(self.config, name), input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after both branches, and the attention's cache."""
        mixed, cache = self.attention(x, sequences, cache)
        x = self.attention_norm(self.attention_residual(x, mixed))
        transformed = self.feed_forward(x, sequences)
        return self.feed_forward_norm(self.feed_forward_residual(x, transformed)), cache

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the attention's cache."""
        return self.attention.cache_spec(rows, length, dtype)
