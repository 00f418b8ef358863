"""`sinks`: each head's softmax has a learned logit without a value."""

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.attention.sinks import LearnedSinks
from kanawa_layers.modifiers.fields import set_fields


class AttentionSinks(kn.Modifier):
    """Sets learned sinks in every attention that supports them, as in gpt-oss."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with sinks."""
        return set_fields(cfg, SequenceMixer, self.config.where, sinks=LearnedSinks.Config())
