"""`block`: every block becomes another kind, named by its place in the catalog, with the same branches."""

import kanawa as kn
from kanawa.config import REQUIRED
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
        kn.replace(cfg, target=Block, new=self._replacement, where=self.config.where)
        return cfg

    def _replacement(self, old: kn.Config) -> kn.Config:
        new = self.new()
        _check_branches(old, new)
        return _with_norms(new, old)


def _check_branches(old: kn.Config, new: kn.Config) -> None:
    """Raises ConfigError where one of the two kinds has a branch that the other lacks."""
    missing = [name for name in new.fields() if vars(new)[name] is REQUIRED and name not in old.fields()]
    branch = (SequenceMixer.Config, FeedForward.Config)
    lost = [name for name in old.fields() if isinstance(getattr(old, name), branch) and name not in new.fields()]
    if missing or lost:
        problems = [f"has no {' and '.join(missing)} for it"] * bool(missing)
        problems += [f"would lose its {' and '.join(lost)}"] * bool(lost)
        kinds = type(old).__qualname__, type(new).__qualname__
        message = f"block: {kinds[0]} can't become {kinds[1]}: it {' and '.join(problems)}"
        raise ConfigError(message)


def _with_norms(block: kn.Config, old: kn.Config) -> kn.Config:
    """Returns `block` with norms that the old one lacked copied from those it had."""
    norms = [value for name in old.fields() if isinstance(value := getattr(old, name), Norm.Config)]
    for name in block.fields():
        if norms and name not in old.fields() and isinstance(getattr(block, name), Norm.Config):
            block.set(**{name: norms[0]})
    return block
