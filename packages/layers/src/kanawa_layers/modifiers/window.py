"""`window`: every attention sees a sliding window."""

import kanawa as kn

from kanawa_layers.modifiers.attention_fields import set_on_attention


class SlidingWindow(kn.Modifier):
    """Narrows causal attention to the last `size` keys, the query's own included; None undoes it."""

    class Config(kn.Modifier.Config):
        size: int | None = 4096
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the window set."""
        return set_on_attention(cfg, self.config.where, window=self.config.size)
