"""`group`: parameters with an optimizer, a rate or a decay of their own, for any experiment."""

import kanawa as kn
from kanawa.contracts import Optimizer, ParameterGroup
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_runtime.learn.learner_slots import learner_of


class AddGroup(kn.Modifier):
    """Adds a group to the learner; repeat it for several.

    `--modify 'group:name=tables,roles=["embedding"],optimizer=adamw,lr_scale=0.3'`. `optimizer` is a catalog name
    (empty: the learner's own) and `values` are fields of it.
    """

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED
        where: tuple[str, ...] = ()
        roles: tuple[str, ...] = ()
        optimizer: str = ""
        values: dict[str, bool | int | float | str | None] = {}
        lr_scale: kn.NonNegative | None = None
        weight_decay: kn.NonNegative | None = None

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with one more group in its learner."""
        own = self.config
        learner, optimizer = learner_of(cfg, "groups"), None
        if own.optimizer:
            kind = component("optimizers", own.optimizer)
            if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
                message = f"optimizer {own.optimizer!r} is {kind!r}, expected a subclass of kanawa.contracts.Optimizer"
                raise ConfigError(message)
            optimizer = kind.Config(**own.values)
        group = ParameterGroup(
            name=own.name,
            where=own.where,
            roles=own.roles,
            optimizer=optimizer,
            lr_scale=own.lr_scale,
            weight_decay=own.weight_decay,
        )
        learner.set(groups=(*learner.groups, group))
        return cfg
