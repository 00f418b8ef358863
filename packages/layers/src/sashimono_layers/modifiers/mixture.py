"""`moe`: every feed-forward becomes a mixture of experts, whatever model it is in."""

import sashimono as sm
from sashimono.contracts import FeedForward

from sashimono_layers.moe.mixture import MixtureOfExperts
from sashimono_layers.moe.router import TopKRouter


class MoE(sm.Modifier):
    """Replaces feed-forwards by mixtures of the same hidden size."""

    class Config(sm.Modifier.Config):
        num_experts: int = 8
        top_k: int = 2
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every feed-forward under `where` replaced."""
        new = MixtureOfExperts.Config(
            num_experts=self.config.num_experts, router=TopKRouter.Config(top_k=self.config.top_k)
        )
        sm.replace(cfg, target=FeedForward, new=new, where=self.config.where)
        return cfg
