"""Output-norm block: x + norm(attention(x)), then x + norm(feed_forward(x)), as in OLMo 2."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Block, CacheState, FeedForward, Norm, SequenceMixer, Sequences

from kanawa_layers.basic.rms_norm import RMSNorm
from kanawa_layers.stack.residual import Residual

_CHILDREN = (
    "attention",
    "feed_forward",
    "attention_norm",
    "feed_forward_norm",
    "attention_residual",
    "feed_forward_residual",
)


class OutputNormBlock(Block):
    """Norms on the branches' outputs only (OLMo 2, arXiv:2501.00656, section 3.2; Swin v2's res-post-norm)."""

    class Config(Block.Config):
        attention: SequenceMixer.Config = kn.REQUIRED
        feed_forward: FeedForward.Config = kn.REQUIRED
        attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        attention_residual: Residual.Config = Residual.Config()
        feed_forward_residual: Residual.Config = Residual.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "attention": "self_attn",
                "feed_forward": "mlp",
                "attention_norm": "post_attention_layernorm",
                "feed_forward_norm": "post_feedforward_layernorm",
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
        x = self.attention_residual(x, self.attention_norm(mixed))
        transformed = self.feed_forward(x, sequences)
        return self.feed_forward_residual(x, self.feed_forward_norm(transformed)), cache

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        """Returns the layout of the attention's cache."""
        return self.attention.cache_spec(rows, length, dtype)
