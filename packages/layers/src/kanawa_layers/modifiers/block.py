"""`block`: every block becomes another kind, named by its place in the catalog, with the same branches."""

import kanawa as kn
from kanawa.config import REQUIRED
from kanawa.config.paths import match_path
from kanawa.contracts import Block, FeedForward, Norm, SequenceMixer
from kanawa.errors import ConfigError

from kanawa_layers.modifiers.by_name import RoleByName


class BlockKind(RoleByName):
    """`block`: every block becomes another kind, such as parallel-block; branches, norms and residuals carry over.

    Norms that only the new kind has are copies of the old block's first.
    """

    role, name = Block, "block"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every block under `where` replaced."""
        new, before = self.new(), cfg.clone()
        for path, node in before.walk():
            if isinstance(node, Block.Config) and match_path(self.config.where, path):
                _check_branches(path, node, new)
        for path in kn.replace(cfg, target=Block, new=new, where=self.config.where):
            _give_norms(cfg.get(path), before.get(path))
        return cfg


def _check_branches(path: str, old: kn.Config, new: kn.Config) -> None:
    """Raises ConfigError where one of the two kinds has a branch that the other has no place for."""
    missing = [name for name in new.fields() if vars(new)[name] is REQUIRED and name not in old.fields()]
    branches = [
        name for name in old.fields() if isinstance(getattr(old, name), (SequenceMixer.Config, FeedForward.Config))
    ]
    lost = [name for name in branches if name not in new.fields()]
    if missing or lost:
        problems = [f"has no {' and '.join(missing)} to give it"] * bool(missing)
        problems += [f"would lose its {' and '.join(lost)}"] * bool(lost)
        kinds = type(old).__qualname__, type(new).__qualname__
        message = f"block: {path} can't become {kinds[1]}: {kinds[0]} {' and '.join(problems)}"
        raise ConfigError(message)


def _give_norms(block: kn.Config, old: kn.Config) -> None:
    """Fills the norms that the old block didn't have with the kind it did."""
    norms = [value for name in old.fields() if isinstance(value := getattr(old, name), Norm.Config)]
    for name in block.fields():
        if norms and name not in old.fields() and isinstance(getattr(block, name), Norm.Config):
            block.set(**{name: norms[0]})
