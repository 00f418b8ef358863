"""`fused-qkv`: one kernel makes queries, keys and values."""

import sashimono as sm

from sashimono_layers.basic.linear import Linear
from sashimono_layers.modifiers.attention_fields import set_on_attention


class FusedQKV(sm.Modifier):
    """Gives every attention that can have one a fused `qkv` projection; its weight is laid out by key heads."""

    class Config(sm.Modifier.Config):
        bias: bool = False
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with fused projections."""
        return set_on_attention(cfg, self.config.where, qkv=Linear.Config(bias=self.config.bias))
