"""DPM-Solver++ of second order with several steps, 2M (Lu et al. 2022, arXiv:2211.01095, algorithm 2)."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float

from kanawa_layers.diffusion.objective import Evenly, Objective, Spacing
from kanawa_layers.diffusion.samplers.steps import Network, Noise, SteppedSampler


class DPMSolver(SteppedSampler):
    """Extrapolates the picture from this call and the one before: as good as DDIM in a fraction of its steps.

    The first step and the last one are of first order.
    """

    class Config(SteppedSampler.Config):
        num_steps: kn.Size = 20
        spacing: Spacing.Config = Evenly.Config(before_first=True)

    def forward(
        self, network: Network, start: Float[Array, "B H W C"], objective: Objective, noise: Noise
    ) -> Float[Array, "B H W C"]:
        """Returns the pictures."""
        del noise
        path = objective.trajectory(self.config.num_steps, self.spacing)
        numbers = (path.times, path.signal[:-1], path.level[:-1], *_coefficients(path.signal, path.level))

        def step(
            carry: tuple[Float[Array, "B H W C"], Float[Array, "B H W C"]], at: tuple[Any, ...]
        ) -> tuple[Any, None]:
            (x, before), (time, signal, level, of_x, of_now, of_before) = carry, at
            now = objective.prediction.picture(network(x, time), x, signal, level)
            return (of_x * x + of_now * now + of_before * before, now), None

        xs = tuple(jnp.asarray(a, jnp.float32) for a in numbers)
        x: jax.Array = kn.scan(step, (start, jnp.zeros_like(start)), xs)[0][0]
        return x


def _coefficients(signal: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what of x, of the picture seen now and of that seen before makes the next x, each [steps], float64."""
    of_x = level[1:] / level[:-1]
    # -signal' (e^-h - 1), written without logarithms: at pure noise and at a picture they are infinite.
    of_now = signal[1:] - signal[:-1] * of_x
    with np.errstate(divide="ignore"):
        log_ratio = np.log(signal) - np.log(level)
    widths = np.diff(log_ratio)
    # The step to the picture itself has infinite width, and the first one none before it: both are of first order.
    second = np.isfinite(widths) & (np.arange(len(widths)) > 0)
    half = np.zeros_like(widths)
    half[second] = 0.5 * widths[second] / widths[np.flatnonzero(second) - 1]
    return of_x, of_now * (1.0 + half), -of_now * half
