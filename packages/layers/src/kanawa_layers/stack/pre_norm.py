"""Pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x)), as in Llama."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm

from kanawa_layers.basic.rms_norm import RMSNorm
from kanawa_layers.stack.branches import BRANCH_NAMES, RESIDUAL_NAMES, ResidualBlock


class PreNormBlock(ResidualBlock):
    """Two residual branches, each normalised at its input (Xiong et al. 2020, arXiv:2002.04745)."""

    attention_norm: Norm
    feed_forward_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention_norm": "input_layernorm",
                # Llama names it by its position, not its purpose.
                "feed_forward_norm": "post_attention_layernorm",
                **RESIDUAL_NAMES,
            }
        )

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)
