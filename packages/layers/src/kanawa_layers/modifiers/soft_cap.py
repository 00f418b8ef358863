"""`soft-cap`: attention scores are bounded by a tanh."""

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.modifiers.fields import set_fields


class SoftCap(kn.Modifier):
    """Scores become cap * tanh(scores / cap), as in Gemma 2; None removes it."""

    class Config(kn.Modifier.Config):
        cap: kn.Positive | None = 50.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the cap set."""
        return set_fields(cfg, SequenceMixer, self.config.where, logit_cap=self.config.cap)
