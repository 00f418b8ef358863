"""`moe-capacity` and `moe-loss-free`: how mixtures balance the load of their experts."""

import kanawa as kn
from kanawa.contracts import TokenDispatcher

from kanawa_layers.moe.capacity_dispatcher import CapacityDispatcher
from kanawa_layers.moe.router import BiasBalancing, TopKRouter


class ExpertCapacity(kn.Modifier):
    """`moe-capacity`: limits each expert to `factor` times its fair share of rows and drops the rest."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 1.25
        eval_factor: kn.Positive = 2.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every dispatcher under `where` replaced."""
        own = self.config
        new = CapacityDispatcher.Config(factor=own.factor, eval_factor=own.eval_factor)
        kn.replace(cfg, target=TokenDispatcher, new=new, where=own.where)
        return cfg


class LossFreeBalancing(kn.Modifier):
    """`moe-loss-free`: a selection bias that follows the load replaces the balance loss."""

    class Config(kn.Modifier.Config):
        rate: kn.NonNegative = 0.001
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every top-k router under `where` balanced by a bias."""
        own = self.config

        def edit(router: TopKRouter.Config) -> None:
            router.set(balancing=BiasBalancing.Config(rate=own.rate), balance_loss=0.0)

        kn.replace(cfg, target=TopKRouter, edit=edit, where=own.where)
        return cfg
