"""Modifiers of rotary embeddings: base, partial rotation, and each kind of context stretching."""

from collections.abc import Callable
from typing import Any

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_layers.modifiers.positions import replace_positions
from kanawa_layers.positions.dynamic_ntk import DynamicNTKScaling
from kanawa_layers.positions.frequency_scaling import FrequencyScaling, LinearScaling, Llama3Scaling, NTKScaling
from kanawa_layers.positions.long_rope import LongRopeScaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.positions.yarn import YarnScaling


class Rope(kn.Modifier):
    """`rope`: sets rotary positions of this base and rotated fraction in every attention."""

    class Config(kn.Modifier.Config):
        theta: kn.Positive = 10_000.0
        fraction: kn.Fraction = 1.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions replaced."""
        new = Rotary.Config(theta=self.config.theta, fraction=self.config.fraction)
        return replace_positions(cfg, "rope", new, self.config.where)


class RopeByMatmul(kn.Modifier):
    """`rope-by-matmul`: rotates by a permutation matrix, for devices with matrix units.

    `optional` accepts a model without rotary embeddings, for mesh rules, which apply to any model.
    """

    class Config(kn.Modifier.Config):
        optional: bool = False

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with `by_matmul` set."""
        kn.replace(cfg, target=Rotary, edit=lambda node: node.set(by_matmul=True), allow_none=self.config.optional)
        return cfg


class RopeLinear(kn.Modifier):
    """`rope-linear`: divides all rotary frequencies by `factor`."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 2.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        return _scaled(cfg, LinearScaling.Config(factor=self.config.factor), self.config.where)


class RopeNTK(kn.Modifier):
    """`rope-ntk`: raises the rotary base so that the lowest frequency is divided by `factor`."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 2.0
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        return _scaled(cfg, NTKScaling.Config(factor=self.config.factor), self.config.where)


class RopeLlama3(kn.Modifier):
    """`rope-llama3`: Llama 3.1's blend, for `factor` times `original_length` tokens (None: the model's own)."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 8.0
        original_length: kn.Size | None = None
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config

        def scaling(length: int) -> FrequencyScaling.Config:
            return Llama3Scaling.Config(factor=own.factor, original_length=length)

        return _scaled_from(cfg, scaling, "rope-llama3", own.original_length, own.where)


class RopeYarn(kn.Modifier):
    """`rope-yarn`: YaRN for `factor` times `original_length` tokens (None: the model's own)."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 4.0
        original_length: kn.Size | None = None
        multiplier: kn.Positive | None = None
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config

        def scaling(length: int) -> FrequencyScaling.Config:
            return YarnScaling.Config(factor=own.factor, original_length=length, multiplier=own.multiplier)

        return _scaled_from(cfg, scaling, "rope-yarn", own.original_length, own.where)


class RopeDynamicNTK(kn.Modifier):
    """`rope-dynamic-ntk`: a base for sequences of `length` tokens (None: `factor` times the model's own length)."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 2.0
        original_length: kn.Size | None = None
        length: kn.Size | None = None
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config

        def scaling(length: int) -> FrequencyScaling.Config:
            wanted = own.length or round(own.factor * length)
            return DynamicNTKScaling.Config(factor=own.factor, original_length=length, length=wanted)

        return _scaled_from(cfg, scaling, "rope-dynamic-ntk", own.original_length, own.where)


class RopeLongRope(kn.Modifier):
    """`rope-longrope`: a searched factor for each frequency, up to `max_length` tokens; both lists are required."""

    class Config(kn.Modifier.Config):
        short_factors: tuple[kn.Positive, ...] = kn.REQUIRED
        long_factors: tuple[kn.Positive, ...] = kn.REQUIRED
        original_length: kn.Size | None = None
        max_length: kn.Size = 131_072
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        own = self.config
        factors = {"short_factors": own.short_factors, "long_factors": own.long_factors}

        def scaling(length: int) -> FrequencyScaling.Config:
            return LongRopeScaling.Config(original_length=length, max_length=own.max_length, **factors)

        return _scaled_from(cfg, scaling, "rope-longrope", own.original_length, own.where)


def _scaled(cfg: kn.Config, scaling: kn.Config, where: str) -> kn.Config:
    kn.replace(cfg, target=Rotary, edit=lambda node: node.set(scaling=scaling), where=where)
    return cfg


def _scaled_from(
    cfg: kn.Config, scaling: Callable[[int], kn.Config], modifier: str, length: int | None, where: str
) -> kn.Config:
    """Returns `cfg` with every rotary embedding scaled from `length`, or from its own trained length.

    Raises ConfigError where an embedding has none.
    """

    def stretch(node: Any) -> None:
        original = length if length is not None else trained_length(node)
        if original is None:
            message = (
                f"{modifier}: a rotary embedding under {where!r} has no trained_length: the length of sequences its "
                f"model was trained on; pass original_length=… or set trained_length"
            )
            raise ConfigError(message)
        node.set(scaling=scaling(original))

    kn.replace(cfg, target=Rotary, edit=stretch, where=where)
    return cfg


def trained_length(rotary: Rotary.Config) -> int | None:
    """Returns the length of sequences before any stretching: the scaling's, else the node's `trained_length`."""
    # A scaling that is replaced stretched from an earlier length, on which the weights were trained.
    scaling: Any = rotary.scaling
    if scaling is not None and "original_length" in scaling.fields():
        original: int | None = scaling.original_length
        return original
    return rotary.trained_length
