"""`sinks`: each head's softmax has a learned logit without a value."""

import sashimono as sm

from sashimono_layers.attention.sinks import LearnedSinks
from sashimono_layers.modifiers.attention_fields import set_on_attention


class AttentionSinks(sm.Modifier):
    """Gives every attention that can have them learned sinks, as in gpt-oss."""

    class Config(sm.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with sinks."""
        return set_on_attention(cfg, self.config.where, sinks=LearnedSinks.Config())
