"""`attention-mask`: which keys a query may attend to."""

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.attention.masks import Causal, Mask
from kanawa_layers.modifiers.fields import set_fields


class AttentionMask(kn.Modifier):
    """Sets the mask of every attention that has one."""

    class Config(kn.Modifier.Config):
        mask: Mask.Config = Causal.Config()
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the mask set."""
        return set_fields(cfg, SequenceMixer, self.config.where, mask=self.config.mask)
