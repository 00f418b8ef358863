"""The contract of objectives: which noise a picture gets when, and what the network is to say of it."""

import abc
from typing import NamedTuple

import jax
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float

from kanawa_layers.diffusion.prediction import NoisePrediction, Prediction


class Noising(NamedTuple):
    """The noise of each row of a batch: x = signal * picture + level * noise. All fp32 [B].

    `times` are what the network sees, from 0 (a picture) to the objective's `num_times` (noise).
    """

    times: Float[Array, " B"]
    signal: Float[Array, " B"]
    level: Float[Array, " B"]

    def of_pictures(self) -> tuple[jax.Array, jax.Array]:
        """Returns signal and level as [B, 1, 1, 1]."""
        return self.signal[:, None, None, None], self.level[:, None, None, None]


class Trajectory(NamedTuple):
    """The places where a sampler calls the network, from noise to a picture. All float64.

    `times` [steps] are what the network sees; `signal` and `level` have one more, the picture's: 1 and 0.
    """

    times: np.ndarray
    signal: np.ndarray
    level: np.ndarray


class Spacing(kn.Module):
    """Which of `num_times` times a sampler with few steps visits; a slot of samplers, without parameters."""

    @kn.nowrap
    @abc.abstractmethod
    def places(self, num_steps: int, num_times: int) -> np.ndarray:
        """Returns places from `num_times` - 1 (noise) down to 0, [num_steps], not rounded."""


class Evenly(Spacing):
    """From the last time to the first one, or with `before_first` to one step before it, as DPM-Solver does."""

    class Config(Spacing.Config):
        before_first: bool = False

    @kn.nowrap
    def places(self, num_steps: int, num_times: int) -> np.ndarray:
        """Returns the places."""
        skipped = int(self.config.before_first)
        return np.linspace(num_times - 1, 0, num_steps + skipped)[:num_steps]


class Leading(Spacing):
    """Every k-th time from the first one, k whole, as the first implementation of DDIM does."""

    @kn.nowrap
    def places(self, num_steps: int, num_times: int) -> np.ndarray:
        """Returns the places."""
        return (np.arange(num_steps) * (num_times // num_steps))[::-1].astype(np.float64)


class Trailing(Spacing):
    """Evenly from the last time, which is pure noise (Lin et al. 2023, arXiv:2305.08891, section 3.3)."""

    @kn.nowrap
    def places(self, num_steps: int, num_times: int) -> np.ndarray:
        """Returns the places."""
        return num_times - np.arange(num_steps) * (num_times / num_steps) - 1


class Objective(kn.Module):
    """What a diffusion model learns; a slot of models, without parameters."""

    prediction: Prediction

    class Config(kn.Module.Config):
        prediction: Prediction.Config = NoisePrediction.Config()

    def setup(self) -> None:
        """Declares the prediction."""
        self.add_child("prediction", self.config.prediction)

    @kn.nowrap
    @abc.abstractmethod
    def noising(self, quantiles: Float[Array, " B"]) -> Noising:
        """Returns the noise at quantiles, 0 to 1, of the distribution of times in training.

        Uniform draws give the distribution; evenly spaced quantiles an evaluation that doesn't vary.
        """

    @kn.nowrap
    @abc.abstractmethod
    def trajectory(self, num_steps: int, spacing: Spacing) -> Trajectory:
        """Returns where a sampler of `num_steps` calls the network."""
