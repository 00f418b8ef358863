"""`block`: every block becomes another kind, named by its place in the catalog, with the same branches."""

import kanawa as kn
from kanawa.contracts import Block, Norm

from kanawa_layers.modifiers.by_name import RoleByName


class BlockKind(RoleByName):
    """`block`: every block becomes another kind, such as parallel-block; branches, norms and residuals carry over.

    Norms that only the new kind has are copies of the old block's first.
    """

    role, name = Block, "block"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every block under `where` replaced."""
        before = cfg.clone()
        for path in kn.replace(cfg, target=Block, new=self.new(), where=self.config.where):
            _give_norms(cfg.get(path), before.get(path))
        return cfg


def _give_norms(block: kn.Config, old: kn.Config) -> None:
    """Fills the norms that the old block didn't have with the kind it did."""
    norms = [value for name in old.fields() if isinstance(value := getattr(old, name), Norm.Config)]
    for name in block.fields():
        if norms and name not in old.fields() and isinstance(getattr(block, name), Norm.Config):
            block.set(**{name: norms[0]})
