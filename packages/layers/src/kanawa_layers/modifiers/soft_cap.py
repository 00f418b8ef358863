"""`soft-cap`: attention scores are bounded by a tanh."""

import kanawa as kn

from kanawa_layers.modifiers.attention_fields import set_on_attention


class SoftCap(kn.Modifier):
    """Scores become cap * tanh(scores / cap), as in Gemma 2; None undoes it."""

    class Config(kn.Modifier.Config):
        cap: float | None = 50.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the cap set."""
        return set_on_attention(cfg, self.config.where, logit_cap=self.config.cap)
