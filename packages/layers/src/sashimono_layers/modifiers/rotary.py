"""Modifiers of rotary embeddings: base, partial rotation, and each kind of context stretching."""

import sashimono as sm
from sashimono.contracts import Positions

from sashimono_layers.positions.frequency_scaling import LinearScaling, Llama3Scaling, NTKScaling
from sashimono_layers.positions.rotary import Rotary


class Rope(sm.Modifier):
    """`rope`: gives every attention rotary positions of this base and rotated fraction."""

    class Config(sm.Modifier.Config):
        theta: float = 10_000.0
        fraction: float = 1.0

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with all positions replaced."""
        new = Rotary.Config(theta=self.config.theta, fraction=self.config.fraction)
        sm.replace(cfg, target=Positions, new=new)
        return cfg


class RopeLinear(sm.Modifier):
    """`rope-linear`: divides all rotary frequencies by `factor`."""

    class Config(sm.Modifier.Config):
        factor: float = 2.0

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        return _scaled(cfg, LinearScaling.Config(factor=self.config.factor))


class RopeNTK(sm.Modifier):
    """`rope-ntk`: raises the rotary base so that the lowest frequency is divided by `factor`."""

    class Config(sm.Modifier.Config):
        factor: float = 2.0

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        return _scaled(cfg, NTKScaling.Config(factor=self.config.factor))


class RopeLlama3(sm.Modifier):
    """`rope-llama3`: Llama 3.1's blend, for `factor` times `original_length` tokens."""

    class Config(sm.Modifier.Config):
        factor: float = 8.0
        original_length: int = 8192

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config
        return _scaled(cfg, Llama3Scaling.Config(factor=own.factor, original_length=own.original_length))


def _scaled(cfg: sm.Config, scaling: sm.Config) -> sm.Config:
    sm.replace(cfg, target=Rotary, edit=lambda node: node.set(scaling=scaling))
    return cfg
