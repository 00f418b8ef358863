"""Modifiers of positions: rotary embeddings with each kind of context stretching, other positions, or none."""

import abc
import logging
from typing import Any, ClassVar

import kanawa as kn
from kanawa.contracts import Positions, SequenceMixer
from kanawa.errors import ConfigError

from kanawa_layers.positions.biases import Alibi, NoPositions, RelativeBias, SharedRelativeBias
from kanawa_layers.positions.frequency_scaling import (
    DynamicNTKScaling,
    FrequencyScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    YarnScaling,
)
from kanawa_layers.positions.rotary import Rotary

logger = logging.getLogger(__name__)


class AlibiPositions(kn.Modifier):
    """`alibi`: scores fall linearly with distance."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        return replace_positions(cfg, "alibi", Alibi.Config(), self.config.where)


class WithoutPositions(kn.Modifier):
    """`no-positions`: attention learns order from the causal mask alone (Kazemnejad et al. 2023, arXiv:2305.19466)."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` removed."""
        return replace_positions(cfg, "no-positions", NoPositions.Config(), self.config.where)


class RelativePositions(kn.Modifier):
    """`relative-bias`: T5's trained bias of bucketed distances, one a layer."""

    class Config(kn.Modifier.Config):
        num_buckets: kn.Size = 32
        max_distance: kn.Size = 128
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        own = self.config
        new = RelativeBias.Config(num_buckets=own.num_buckets, max_distance=own.max_distance)
        return replace_positions(cfg, "relative-bias", new, own.where)


def replace_positions(cfg: kn.Config, modifier: str, new: Positions.Config, where: str) -> kn.Config:
    """Returns `cfg` with `new` in the place of all positions under `where`, in each attention its own.

    Positions that layers share from outside of attention, as T5's do, are then unused: they are removed, which is
    logged.
    """
    kn.replace(cfg, target=Positions, new=new, where=where)
    attentions = [path for path, node in cfg.walk() if _fills(node, SequenceMixer)]
    # A list, because the loop removes nodes.
    for path, node in list(cfg.walk()):
        if not _fills(node, Positions) or any(path.startswith(f"{attention}.") for attention in attentions):
            continue
        above = path.rpartition(".")[0]
        around = cfg.get(above) if above else cfg
        if not any(isinstance(other, SharedRelativeBias.Config) for _, other in around.walk()):
            cfg.set_path(path, None)
            logger.warning(
                "%s: %s is removed, because no layer shares it any more: each has its own positions", modifier, path
            )
    return cfg


def _fills(node: kn.Config, role: type) -> bool:
    return node._target is not None and issubclass(node._target, role)


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


class ScaledRope(kn.Modifier):
    """Scales the frequencies of every rotary embedding under `where`."""

    class Config(kn.Modifier.Config):
        factor: kn.Positive = 2.0
        where: str = "**"

    scaling: ClassVar[type[LinearScaling] | type[NTKScaling]]

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched."""
        scaling = self.scaling.Config(factor=self.config.factor)
        kn.replace(cfg, target=Rotary, edit=lambda node: node.set(scaling=scaling), where=self.config.where)
        return cfg


class RopeLinear(ScaledRope):
    """`rope-linear`: divides all rotary frequencies by `factor`."""

    scaling = LinearScaling


class RopeNTK(ScaledRope):
    """`rope-ntk`: raises the rotary base so that the lowest frequency is divided by `factor`."""

    scaling = NTKScaling


class StretchedRope(kn.Modifier):
    """Scales every rotary embedding under `where` from `original_length`, or from its own trained length."""

    class Config(kn.Modifier.Config):
        original_length: kn.Size | None = None
        where: str = "**"

    #: The modifier's name, for messages.
    name: ClassVar[str]

    @abc.abstractmethod
    def scaling(self, length: int) -> FrequencyScaling.Config:
        """Returns the scaling of an embedding that was trained on sequences of `length` tokens."""

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every rotary embedding stretched; raises ConfigError for one without a trained length."""
        where = self.config.where

        def stretch(node: Rotary.Config) -> None:
            original = self.config.original_length or trained_length(node)
            if original is None:
                message = (
                    f"{self.name}: a rotary embedding under {where!r} has no trained_length, the length of sequences "
                    f"its model was trained on; pass original_length=… or set trained_length"
                )
                raise ConfigError(message)
            node.set(scaling=self.scaling(original))

        kn.replace(cfg, target=Rotary, edit=stretch, where=where)
        return cfg


class RopeLlama3(StretchedRope):
    """`rope-llama3`: Llama 3.1's blend, for `factor` times `original_length` tokens (None: the model's own)."""

    class Config(StretchedRope.Config):
        factor: kn.Positive = 8.0

    name = "rope-llama3"

    def scaling(self, length: int) -> FrequencyScaling.Config:
        """Returns Llama 3.1's scaling."""
        return Llama3Scaling.Config(factor=self.config.factor, original_length=length)


class RopeYarn(StretchedRope):
    """`rope-yarn`: YaRN for `factor` times `original_length` tokens (None: the model's own)."""

    class Config(StretchedRope.Config):
        factor: kn.Positive = 4.0
        multiplier: kn.Positive | None = None

    name = "rope-yarn"

    def scaling(self, length: int) -> FrequencyScaling.Config:
        """Returns YaRN's scaling."""
        return YarnScaling.Config(factor=self.config.factor, original_length=length, multiplier=self.config.multiplier)


class RopeDynamicNTK(StretchedRope):
    """`rope-dynamic-ntk`: a base for sequences of `length` tokens (None: `factor` times the model's own length)."""

    class Config(StretchedRope.Config):
        factor: kn.Positive = 2.0
        length: kn.Size | None = None

    name = "rope-dynamic-ntk"

    def scaling(self, length: int) -> FrequencyScaling.Config:
        """Returns the scaling to the wanted length."""
        wanted = self.config.length or round(self.config.factor * length)
        return DynamicNTKScaling.Config(factor=self.config.factor, original_length=length, length=wanted)


class RopeLongRope(StretchedRope):
    """`rope-longrope`: a searched factor for each frequency, up to `max_length` tokens; both lists are required."""

    class Config(StretchedRope.Config):
        short_factors: tuple[kn.Positive, ...] = kn.REQUIRED
        long_factors: tuple[kn.Positive, ...] = kn.REQUIRED
        max_length: kn.Size = 131_072

    name = "rope-longrope"

    def scaling(self, length: int) -> FrequencyScaling.Config:
        """Returns LongRoPE's scaling."""
        own = self.config
        return LongRopeScaling.Config(
            short_factors=own.short_factors,
            long_factors=own.long_factors,
            original_length=length,
            max_length=own.max_length,
        )


def trained_length(rotary: Rotary.Config) -> int | None:
    """Returns the length of sequences before any stretching: the scaling's, else the node's `trained_length`."""
    # A scaling that is replaced stretched from an earlier length, on which the weights were trained.
    scaling: Any = rotary.scaling
    if scaling is not None and "original_length" in scaling.fields():
        original: int | None = scaling.original_length
        return original
    return rotary.trained_length
