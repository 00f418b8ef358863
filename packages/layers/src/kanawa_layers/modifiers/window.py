"""`window`: every attention sees a sliding window."""

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.modifiers.fields import set_fields


class SlidingWindow(kn.Modifier):
    """Narrows causal attention to the last `size` keys, the query's own included; None removes the window."""

    class Config(kn.Modifier.Config):
        size: kn.Size | None = 4096
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the window set."""
        return set_fields(cfg, SequenceMixer, self.config.where, window=self.config.size)
