"""Post-norm block: norm(x + attention(x)), then norm(x + feed_forward(x)), as in BERT."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm

from kanawa_layers.basic.layer_norm import LayerNorm
from kanawa_layers.stack.branches import BRANCH_NAMES, RESIDUAL_NAMES, ResidualBlock


class PostNormBlock(ResidualBlock):
    """The original transformer's block (Vaswani et al. 2017, arXiv:1706.03762): the stream itself is normalised."""

    attention_norm: Norm
    feed_forward_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = LayerNorm.Config()
        feed_forward_norm: Norm.Config = LayerNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention": "attention",
                # BERT has no module around the feed-forward; its two projections are children of the block.
                "feed_forward": "",
                "attention_norm": "attention.output.LayerNorm",
                "feed_forward_norm": "output.LayerNorm",
                **RESIDUAL_NAMES,
            }
        )

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(self._residual(branch)(x, y))
