"""What the samplers here have in common: they go along an objective's trajectory, one call of the network a step."""

import abc
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float
from kanawa.contracts import Sampler

from kanawa_layers.diffusion.objective import Evenly, Objective, Spacing

#: The network at noised pictures and one time: [B, H, W, C] and a scalar to fp32 [B, H, W, C].
Network = Callable[[Float[Array, "B H W C"], Float[Array, ""]], Float[Array, "B H W C"]]
#: A row's own noise of step i, a scalar: fp32 [B, H, W, C].
Noise = Callable[[Any], Float[Array, "B H W C"]]


class SteppedSampler(Sampler):
    """A sampler along a trajectory; `spacing` says which times it visits."""

    spacing: Spacing

    class Config(Sampler.Config):
        spacing: Spacing.Config = Evenly.Config()

    def setup(self) -> None:
        """Declares the spacing."""
        self.add_child("spacing", self.config.spacing)

    @classmethod
    def problem(cls, cfg: Any, objective: Objective.Config) -> str:
        """Returns why this sampler doesn't fit an objective; "" where it does."""
        del cfg, objective
        return ""

    @abc.abstractmethod
    def forward(
        self, network: Network, start: Float[Array, "B H W C"], objective: Objective, noise: Noise
    ) -> Float[Array, "B H W C"]:
        """Returns the pictures that the network makes of pure noise, `start`; `noise` is for samplers that add some."""
