"""Output-norm block: x + norm(attention(x)), then x + norm(feed_forward(x)), as in OLMo 2."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm

from kanawa_layers.basic.rms_norm import RMSNorm
from kanawa_layers.stack.branches import BRANCH_NAMES, RESIDUAL_NAMES, ResidualBlock


class OutputNormBlock(ResidualBlock):
    """Norms on the branches' outputs only (OLMo 2, arXiv:2501.00656, section 3.2; Swin v2's res-post-norm)."""

    attention_norm: Norm
    feed_forward_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention_norm": "post_attention_layernorm",
                "feed_forward_norm": "post_feedforward_layernorm",
                **RESIDUAL_NAMES,
            }
        )

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._residual(branch)(x, self._norm(branch)(y))
