"""`kv-heads`: how many key and value heads all query heads share."""

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.modifiers.fields import set_fields


class KeyValueHeads(kn.Modifier):
    """Sets the number of key and value heads: 1 is multi-query, None multi-head attention."""

    class Config(kn.Modifier.Config):
        count: kn.Size | None = 1
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the count set; the layer checks whether it divides the query heads."""
        return set_fields(cfg, SequenceMixer, self.config.where, num_kv_heads=self.config.count)
