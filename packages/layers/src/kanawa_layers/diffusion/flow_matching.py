"""Flow matching along straight lines: rectified flow (Liu et al. 2022, arXiv:2209.03003; arXiv:2210.02747)."""

import abc
from typing import Any

import jax
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float

from kanawa_layers.diffusion.objective import Noising, Objective, Spacing, Trajectory
from kanawa_layers.diffusion.prediction import FlowPrediction, Prediction


class Times(kn.Module):
    """The distribution of times in training, 0 (a picture) to 1 (noise); a slot of flow matching."""

    @kn.nowrap
    @abc.abstractmethod
    def at(self, quantiles: Float[Array, " B"]) -> Float[Array, " B"]:
        """Returns the times at these quantiles."""


class UniformTimes(Times):
    """All times alike often."""

    @kn.nowrap
    def at(self, quantiles: Float[Array, " B"]) -> Float[Array, " B"]:
        """Returns the quantiles."""
        return quantiles


class LogitNormalTimes(Times):
    """More often in the middle: the logit is normal (Esser et al. 2024, arXiv:2403.03206, section 3.1)."""

    class Config(Times.Config):
        mean: kn.Finite = 0.0
        stddev: kn.Positive = 1.0

    @kn.nowrap
    def at(self, quantiles: Float[Array, " B"]) -> Float[Array, " B"]:
        """Returns the times."""
        cfg = self.config
        return jax.nn.sigmoid(cfg.mean + cfg.stddev * jax.scipy.special.ndtri(quantiles))


class FlowMatching(Objective):
    """x = (1 - t) picture + t noise. The network sees t * `num_times`.

    `shift` moves times towards noise, more for larger pictures: t -> shift t / (1 + (shift - 1) t)
    (arXiv:2403.03206, section 5.3.2), in training and sampling.
    """

    times: Times

    class Config(Objective.Config):
        prediction: Prediction.Config = FlowPrediction.Config()
        times: Times.Config = LogitNormalTimes.Config()
        shift: kn.Positive = 1.0
        num_times: kn.Size = 1000

    def setup(self) -> None:
        """Declares the distribution of times and the prediction."""
        super().setup()
        self.add_child("times", self.config.times)

    @kn.nowrap
    def noising(self, quantiles: Float[Array, " B"]) -> Noising:
        """Returns the noise at these quantiles of the distribution."""
        times = _shifted(self.times.at(quantiles), self.config.shift)
        return Noising(times * self.config.num_times, 1.0 - times, times)

    @kn.nowrap
    def trajectory(self, num_steps: int, spacing: Spacing) -> Trajectory:
        """Returns times from 1 down to the first one, 1 / num_times, or as the spacing has it."""
        cfg = self.config
        # The ends are shifted, and then all: so are released samplers, and so their pictures.
        first = _shifted(1.0 / cfg.num_times, cfg.shift)
        fractions = spacing.places(num_steps, cfg.num_times) / (cfg.num_times - 1)
        times = _shifted(first + fractions * (1.0 - first), cfg.shift)
        levels = np.append(times, 0.0)
        return Trajectory(times * cfg.num_times, 1.0 - levels, levels)


def _shifted(times: Any, shift: float) -> Any:
    return shift * times / (1.0 + (shift - 1.0) * times)
