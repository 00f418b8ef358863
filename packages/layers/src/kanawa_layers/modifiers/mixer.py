"""`mixer`: every attention becomes another mixer of sequences, named by its place in the catalog."""

from typing import Any

import kanawa as kn
from kanawa.contracts import SequenceMixer
from kanawa.errors import UsageError


class Mixer(kn.Modifier):
    """Replaces attention layers by the layer `kind`, such as gated-delta-net; fields of the same name carry over.

    `options` sets others, such as {"state_dim": 64}. Raises UsageError where `kind` doesn't mix sequences.
    """

    class Config(kn.Modifier.Config):
        kind: str = kn.REQUIRED
        options: dict[str, Any] = {}
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every attention under `where` replaced."""
        own = self.config
        layer = kn.component("layers", own.kind)
        if not (isinstance(layer, type) and issubclass(layer, SequenceMixer)):
            message = (
                f"mixer: {own.kind!r} is {layer!r}, which mixes no sequences; name one that implements SequenceMixer"
            )
            raise UsageError(message)
        kn.replace(cfg, target=SequenceMixer, new=layer.Config(**own.options), where=own.where)
        return cfg
