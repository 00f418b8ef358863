"""`moe`, `moe-capacity` and `moe-loss-free`: mixtures of experts in any model, and how they balance their load."""

import kanawa as kn
from kanawa.contracts import FeedForward, TokenDispatcher

from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.moe.dispatchers import CapacityDispatcher
from kanawa_layers.moe.experts import Experts, GatedExperts, PlainExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import BiasBalancing, TopKRouter


class MoE(kn.Modifier):
    """Replaces feed-forwards by mixtures whose experts have their kind, activation, gating, biases and hidden size.

    `hidden_dim` sets another hidden size of experts; `shared_hidden_dim` adds a shared feed-forward of the old kind.
    """

    class Config(kn.Modifier.Config):
        num_experts: kn.Size = 8
        top_k: kn.Size = 2
        hidden_dim: kn.Size | None = None
        shared_hidden_dim: kn.Size | None = None
        normalise_weights: bool = True
        balance_loss: kn.NonNegative = 0.01
        z_loss: kn.NonNegative = 0.001
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every feed-forward under `where` replaced."""
        own = self.config
        router = TopKRouter.Config(
            top_k=own.top_k,
            normalise_weights=own.normalise_weights,
            balance_loss=own.balance_loss,
            z_loss=own.z_loss,
        )

        def mixture_like(old: kn.Config) -> kn.Config:
            new = MixtureOfExperts.Config(num_experts=own.num_experts, router=router)
            if isinstance(old, MixtureOfExperts.Config):
                return new
            new.set(experts=_experts_like(old))
            if own.hidden_dim is not None:
                new.set(hidden_dim=own.hidden_dim)
            if own.shared_hidden_dim is not None:
                # kn.replace passes a copy of `old`.
                new.set(shared=old.set(hidden_dim=own.shared_hidden_dim))
            return new

        kn.replace(cfg, target=FeedForward, new=mixture_like, where=own.where)
        return cfg


def _experts_like(dense: kn.Config) -> Experts.Config:
    """Returns experts that compute what the feed-forward does, as far as its fields define it."""
    experts = PlainExperts.Config() if isinstance(dense, PlainFeedForward.Config) else GatedExperts.Config()
    fields = dense.fields()
    for name in ("activation", "gating"):
        if name in fields and name in experts.fields() and dense.is_set(name):
            experts.set(**{name: getattr(dense, name)})
    projection = getattr(dense, "up", None) if "up" in fields else None
    if projection is not None and getattr(projection, "bias", False):
        experts.set(bias=True)
    return experts


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
