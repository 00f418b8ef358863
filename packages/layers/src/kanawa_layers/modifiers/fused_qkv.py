"""`fused-qkv`: one kernel makes queries, keys and values."""

import kanawa as kn

from kanawa_layers.basic.linear import Linear
from kanawa_layers.modifiers.attention_fields import set_on_attention


class FusedQKV(kn.Modifier):
    """Gives every attention that can have one a fused `qkv` projection; its weight is laid out by key heads."""

    class Config(kn.Modifier.Config):
        bias: bool = False
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with fused projections."""
        return set_on_attention(cfg, self.config.where, qkv=Linear.Config(bias=self.config.bias))
