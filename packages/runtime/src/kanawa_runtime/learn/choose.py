"""`optimizer`: another optimizer for any experiment, by catalog name."""

import kanawa as kn
from kanawa.config import CallableConfig
from kanawa.contracts import Optimizer
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_runtime.learn.learner import Learner


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
        new = kind.Config(**own.values)
        # An optax transformation is no Optimizer of ours, though it stands in its place.
        plain = [node for _, node in cfg.walk() if _is_callable_optimizer(node)] if own.where == "**" else []
        kn.replace(cfg, target=Optimizer, new=new, where=own.where, allow_none=bool(plain))
        for node in plain:
            node.set(optimizer=new)
        return cfg


def _is_callable_optimizer(node: kn.Config) -> bool:
    return isinstance(node, Learner.Config) and isinstance(node.optimizer, CallableConfig)
