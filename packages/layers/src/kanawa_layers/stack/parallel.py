"""Parallel block: x + attention(norm(x)) + feed_forward(norm(x)), as in GPT-J, PaLM and Cohere's Command."""

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


class ParallelBlock(Block):
    """Both branches read the same stream, through one norm, or two where `feed_forward_norm` is given (GPT-NeoX).

    PaLM (arXiv:2204.02311, section 2) reports 15 % faster training at large scale.
    """

    class Config(Block.Config):
        attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward: FeedForward.Config = kn.REQUIRED
        attention_norm: Norm.Config = LayerNorm.Config()
        feed_forward_norm: Norm.Config | None = None
        attention_residual: Residual.Config = Residual.Config()
        feed_forward_residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "attention": "self_attn",
                "feed_forward": "mlp",
                "attention_norm": "input_layernorm",
                "feed_forward_norm": "post_attention_layernorm",
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
        normed = self.attention_norm(x)
        mixed, cache = self.attention(normed, sequences, cache)
        if self.feed_forward_norm is not None:
            normed = self.feed_forward_norm(x)
        transformed = self.feed_forward(normed, sequences)
        return self.feed_forward_residual(self.attention_residual(x, mixed), transformed), cache

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the attention's cache."""
        return self.attention.cache_spec(rows, length, dtype)
