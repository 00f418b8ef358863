"""`block`: every block becomes another kind, named by its place in the catalog, with the same branches."""

import kanawa as kn
from kanawa.contracts import Block, Norm
from kanawa.errors import UsageError


class BlockKind(kn.Modifier):
    """Replaces blocks by the layer `kind`, such as parallel-block; branches, norms and residuals carry over.

    Norms that only the new kind has are copies of the old block's first. Raises UsageError where `kind` isn't a block.
    """

    class Config(kn.Modifier.Config):
        kind: str = kn.REQUIRED
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every block under `where` replaced."""
        own = self.config
        layer = kn.component("layers", own.kind)
        if not (isinstance(layer, type) and issubclass(layer, Block)):
            message = f"block: {own.kind!r} is {layer!r}, which is no block; name one, such as parallel-block"
            raise UsageError(message)
        kn.replace(cfg, target=Block, new=lambda old: _like(old, layer.Config()), where=own.where)
        return cfg


def _like(old: kn.Config, block: kn.Config) -> kn.Config:
    """Returns `block` with the norms that the old block didn't have in the kind it did."""
    norms = [value for name in old.fields() if isinstance(value := getattr(old, name), Norm.Config)]
    for name in block.fields():
        if norms and name not in old.fields() and isinstance(getattr(block, name), Norm.Config):
            block.set(**{name: norms[0]})
    return block
