"""Modifiers of rotary embeddings: base, partial rotation, and each kind of context stretching."""

import kanawa as kn
from kanawa.contracts import Positions

from kanawa_layers.positions.dynamic_ntk import DynamicNTKScaling
from kanawa_layers.positions.frequency_scaling import LinearScaling, Llama3Scaling, NTKScaling
from kanawa_layers.positions.long_rope import LongRopeScaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.positions.yarn import YarnScaling


class Rope(kn.Modifier):
    """`rope`: gives every attention rotary positions of this base and rotated fraction."""

    class Config(kn.Modifier.Config):
        theta: float = 10_000.0
        fraction: float = 1.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions replaced."""
        new = Rotary.Config(theta=self.config.theta, fraction=self.config.fraction)
        kn.replace(cfg, target=Positions, new=new, where=self.config.where)
        return cfg


class RopeByMatmul(kn.Modifier):
    """`rope-by-matmul`: turns by a permutation matrix, for hardware with matrix units; models without rope stay."""

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the same numbers computed otherwise."""
        kn.replace(cfg, target=Rotary, edit=lambda node: node.set(by_matmul=True), allow_none=True)
        return cfg


class RopeLinear(kn.Modifier):
    """`rope-linear`: divides all rotary frequencies by `factor`."""

    class Config(kn.Modifier.Config):
        factor: float = 2.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        return _scaled(cfg, LinearScaling.Config(factor=self.config.factor), self.config.where)


class RopeNTK(kn.Modifier):
    """`rope-ntk`: raises the rotary base so that the lowest frequency is divided by `factor`."""

    class Config(kn.Modifier.Config):
        factor: float = 2.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        return _scaled(cfg, NTKScaling.Config(factor=self.config.factor), self.config.where)


class RopeLlama3(kn.Modifier):
    """`rope-llama3`: Llama 3.1's blend, for `factor` times `original_length` tokens."""

    class Config(kn.Modifier.Config):
        factor: float = 8.0
        original_length: int = 8192
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config
        return _scaled(
            cfg, Llama3Scaling.Config(factor=own.factor, original_length=own.original_length), self.config.where
        )


class RopeYarn(kn.Modifier):
    """`rope-yarn`: YaRN for `factor` times `original_length` tokens."""

    class Config(kn.Modifier.Config):
        factor: float = 4.0
        original_length: int = 8192
        multiplier: float | None = None
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config
        values = {"factor": own.factor, "original_length": own.original_length, "multiplier": own.multiplier}
        return _scaled(cfg, YarnScaling.Config(**values), self.config.where)


class RopeDynamicNTK(kn.Modifier):
    """`rope-dynamic-ntk`: a base for sequences of `length` tokens, trained on `original_length`."""

    class Config(kn.Modifier.Config):
        factor: float = 2.0
        original_length: int = 4096
        length: int = 8192
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config
        values = {"factor": own.factor, "original_length": own.original_length, "length": own.length}
        return _scaled(cfg, DynamicNTKScaling.Config(**values), self.config.where)


class RopeLongRope(kn.Modifier):
    """`rope-longrope`: a searched factor for each frequency; both lists are required."""

    class Config(kn.Modifier.Config):
        short_factors: tuple[float, ...] = kn.REQUIRED
        long_factors: tuple[float, ...] = kn.REQUIRED
        original_length: int = 4096
        max_length: int = 131_072
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config
        lengths = {"original_length": own.original_length, "max_length": own.max_length}
        scaling = LongRopeScaling.Config(short_factors=own.short_factors, long_factors=own.long_factors, **lengths)
        return _scaled(cfg, scaling, self.config.where)


def _scaled(cfg: kn.Config, scaling: kn.Config, where: str) -> kn.Config:
    kn.replace(cfg, target=Rotary, edit=lambda node: node.set(scaling=scaling), where=where)
    return cfg
