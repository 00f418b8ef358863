"""Euler's method for flow matching."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float

from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.objective import Objective
from kanawa_layers.diffusion.prediction import FlowPrediction
from kanawa_layers.diffusion.samplers.steps import Network, Noise, SteppedSampler


class Euler(SteppedSampler):
    """x += speed * (next time - time): the steps of the ordinary differential equation that a flow is."""

    @classmethod
    def problem(cls, cfg: Any, objective: Objective.Config) -> str:
        """Returns why there is no speed to follow."""
        if isinstance(objective, FlowMatching.Config) and isinstance(objective.prediction, FlowPrediction.Config):
            return ""
        return (
            "sampler Euler follows the speed that flow matching predicts, and objective is "
            f"{type(objective).__qualname__} with {type(objective.prediction).__qualname__}; use DDIM or DPMSolver"
        )

    def forward(
        self, network: Network, start: Float[Array, "B H W C"], objective: Objective, noise: Noise
    ) -> Float[Array, "B H W C"]:
        """Returns the pictures."""
        del noise
        path = objective.trajectory(self.config.num_steps, self.spacing)
        steps = path.level[1:] - path.level[:-1]

        def step(x: Float[Array, "B H W C"], at: tuple[Any, Any]) -> tuple[Float[Array, "B H W C"], None]:
            time, width = at
            return x + width * network(x, time), None

        xs = tuple(jnp.asarray(a, jnp.float32) for a in (path.times, steps))
        x: jax.Array = kn.scan(step, start, xs)[0]
        return x
