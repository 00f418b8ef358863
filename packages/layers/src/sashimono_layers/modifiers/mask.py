"""`attention-mask`: who may attend to whom."""

import sashimono as sm

from sashimono_layers.attention.masks import Causal, Mask
from sashimono_layers.modifiers.attention_fields import set_on_attention


class AttentionMask(sm.Modifier):
    """Sets the mask of every attention that has one."""

    class Config(sm.Modifier.Config):
        mask: Mask.Config = Causal.Config()
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with the mask set."""
        return set_on_attention(cfg, self.config.where, mask=self.config.mask)
