"""Sandwich-norm block: x + norm(branch(norm(x))) for both branches, as in Gemma 2 and 3."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm

from kanawa_layers.basic.rms_norm import RMSNorm
from kanawa_layers.stack.branches import BRANCH_NAMES, RESIDUAL_NAMES, ResidualBlock


class SandwichNormBlock(ResidualBlock):
    """A norm before and one after each branch (Gemma 2, arXiv:2408.00118, section 2; CogView, arXiv:2105.13290)."""

    attention_norm: Norm
    attention_output_norm: Norm
    feed_forward_norm: Norm
    feed_forward_output_norm: Norm

    class Config(ResidualBlock.Config):
        attention_norm: Norm.Config = RMSNorm.Config()
        attention_output_norm: Norm.Config = RMSNorm.Config()
        feed_forward_norm: Norm.Config = RMSNorm.Config()
        feed_forward_output_norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                **BRANCH_NAMES,
                "attention_norm": "input_layernorm",
                # In Llama this name is the norm before the feed-forward; here it is that of attention's output.
                "attention_output_norm": "post_attention_layernorm",
                "feed_forward_norm": "pre_feedforward_layernorm",
                "feed_forward_output_norm": "post_feedforward_layernorm",
                **RESIDUAL_NAMES,
            }
        )

    def _read(self, branch: str, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._norm(branch)(x)

    def _join(self, branch: str, x: Float[Array, "B T E"], y: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self._residual(branch)(x, self._norm(branch, "output_norm")(y))
