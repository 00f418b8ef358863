"""Modifiers that give attention other positions than rotary ones, or none."""

import sashimono as sm
from sashimono.contracts import Positions

from sashimono_layers.positions.alibi import Alibi
from sashimono_layers.positions.none import NoPositions
from sashimono_layers.positions.relative_bias import RelativeBias


class AlibiPositions(sm.Modifier):
    """`alibi`: scores fall linearly with distance."""

    class Config(sm.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        sm.replace(cfg, target=Positions, new=Alibi.Config(), where=self.config.where)
        return cfg


class WithoutPositions(sm.Modifier):
    """`no-positions`: attention learns order from the causal mask alone (Kazemnejad et al. 2023, arXiv:2305.19466)."""

    class Config(sm.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with all positions under `where` removed."""
        sm.replace(cfg, target=Positions, new=NoPositions.Config(), where=self.config.where)
        return cfg


class RelativePositions(sm.Modifier):
    """`relative-bias`: T5's trained bias of bucketed distances, one a layer."""

    class Config(sm.Modifier.Config):
        num_buckets: int = 32
        max_distance: int = 128
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        own = self.config
        new = RelativeBias.Config(num_buckets=own.num_buckets, max_distance=own.max_distance)
        sm.replace(cfg, target=Positions, new=new, where=own.where)
        return cfg
