"""DDIM (Song et al. 2020, arXiv:2010.02502): to the picture as it looks now, and back to less noise."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float

from kanawa_layers.diffusion.ddpm import DDPM
from kanawa_layers.diffusion.objective import Leading, Objective, Spacing
from kanawa_layers.diffusion.samplers.steps import Network, Noise, SteppedSampler


class DDIM(SteppedSampler):
    """`eta` 0 adds no noise, and 1 what DDPM adds; `clip` bounds pictures at each step, 1 of pixels."""

    class Config(SteppedSampler.Config):
        spacing: Spacing.Config = Leading.Config()
        eta: kn.NonNegative = 0.0
        clip: kn.Positive | None = None

    @classmethod
    def problem(cls, cfg: Any, objective: Objective.Config) -> str:
        """Returns why this objective has no such steps."""
        if isinstance(objective, DDPM.Config):
            steps = objective.betas.num_times
            return "" if cfg.num_steps <= steps else f"sampler has {cfg.num_steps} steps, and objective {steps} times"
        return (
            f"sampler DDIM needs the noise schedule of a DDPM, and objective is {type(objective).__qualname__}; use "
            "Euler or DPMSolver"
        )

    def forward(
        self, network: Network, start: Float[Array, "B H W C"], objective: Objective, noise: Noise
    ) -> Float[Array, "B H W C"]:
        """Returns the pictures."""
        cfg, predicted = self.config, objective.prediction
        path = objective.trajectory(cfg.num_steps, self.spacing)
        signal, level = path.signal, path.level
        # The variance of DDPM's own step (equation 16), zero where the next step is the picture.
        with np.errstate(invalid="ignore", divide="ignore"):
            added = cfg.eta * (level[1:] / level[:-1]) * np.sqrt(1.0 - (signal[:-1] / signal[1:]) ** 2)
        kept = np.sqrt(np.maximum(level[1:] ** 2 - added**2, 0.0))

        def step(x: Float[Array, "B H W C"], at: tuple[Any, ...]) -> tuple[Float[Array, "B H W C"], None]:
            index, time, alpha, sigma, next_alpha, next_sigma, fresh = at
            output = network(x, time)
            picture, old = (part(output, x, alpha, sigma) for part in (predicted.picture, predicted.noise))
            picture = picture if cfg.clip is None else jnp.clip(picture, -cfg.clip, cfg.clip)
            x = next_alpha * picture + next_sigma * old
            return (x + fresh * noise(index) if cfg.eta else x), None

        numbers = (path.times, signal[:-1], level[:-1], signal[1:], kept, added)
        xs = (jnp.arange(cfg.num_steps), *(jnp.asarray(a, jnp.float32) for a in numbers))
        x: jax.Array = kn.scan(step, start, xs)[0]
        return x
