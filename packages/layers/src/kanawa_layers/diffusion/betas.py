"""Noise schedules of DDPM: how much noise each of its times adds (Ho et al. 2020, arXiv:2006.11239)."""

import abc

import kanawa as kn
import numpy as np


class Betas(kn.Module):
    """The variance that each of `num_times` times adds; a slot of DDPM, without parameters."""

    class Config(kn.Module.Config):
        num_times: kn.Size = 1000

    @kn.nowrap
    @abc.abstractmethod
    def betas(self) -> np.ndarray:
        """Returns the variances, [num_times], float64."""

    @kn.nowrap
    def signal(self) -> np.ndarray:
        """Returns the share of the picture's variance that is left after each time, [num_times], float64."""
        shares: np.ndarray = np.cumprod(1.0 - self.betas())
        return shares


class LinearBetas(Betas):
    """Evenly from `first` to `last`, as in DDPM (section 4) and DiT."""

    class Config(Betas.Config):
        first: kn.Positive = 1e-4
        last: kn.Positive = 0.02

    @kn.nowrap
    def betas(self) -> np.ndarray:
        """Returns the variances."""
        cfg = self.config
        return np.linspace(cfg.first, cfg.last, cfg.num_times)


class ScaledLinearBetas(Betas):
    """Their square roots evenly, as in latent diffusion (Rombach et al. 2022, arXiv:2112.10752)."""

    class Config(Betas.Config):
        first: kn.Positive = 0.00085
        last: kn.Positive = 0.012

    @kn.nowrap
    def betas(self) -> np.ndarray:
        """Returns the variances."""
        cfg = self.config
        return np.linspace(cfg.first**0.5, cfg.last**0.5, cfg.num_times) ** 2


class CosineBetas(Betas):
    """Those that leave cos^2 of the picture's variance (Nichol and Dhariwal 2021, arXiv:2102.09672, section 3.2)."""

    class Config(Betas.Config):
        offset: kn.Fraction = 0.008
        largest: kn.Fraction = 0.999

    @kn.nowrap
    def betas(self) -> np.ndarray:
        """Returns the variances, the last ones cut at `largest`."""
        cfg = self.config
        fractions = np.arange(cfg.num_times + 1) / cfg.num_times
        left = np.cos((fractions + cfg.offset) / (1.0 + cfg.offset) * np.pi / 2) ** 2
        cut: np.ndarray = np.minimum(1.0 - left[1:] / left[:-1], cfg.largest)
        return cut
