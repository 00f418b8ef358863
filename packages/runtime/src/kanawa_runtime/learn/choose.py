"""`optimizer`: another optimizer for any experiment, by catalog name."""

import kanawa as kn
from kanawa.contracts import Optimizer
from kanawa.errors import ConfigError
from kanawa.plugins import component


class ChooseOptimizer(kn.Modifier):
    """Replaces whatever optimizes; values set on the old one carry over where the new one has the same field.

    `values` are fields of the new one: `--modify 'optimizer:name=muon,values={"weight_decay": 0.01}'`.
    """

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED
        values: dict[str, bool | int | float | str | None] = {}
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every optimizer under `where` replaced."""
        own = self.config
        kind = component("optimizers", own.name)
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            message = f"optimizer {own.name!r} is {kind!r}, expected a subclass of kanawa.contracts.Optimizer"
            raise ConfigError(message)
        kn.replace(cfg, target=Optimizer, new=kind.Config(**own.values), where=own.where)
        return cfg
