"""Modifiers that give attention other positions than rotary ones, or none."""

import kanawa as kn
from kanawa.contracts import Positions

from kanawa_layers.positions.alibi import Alibi
from kanawa_layers.positions.none import NoPositions
from kanawa_layers.positions.relative_bias import RelativeBias


class AlibiPositions(kn.Modifier):
    """`alibi`: scores fall linearly with distance."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        kn.replace(cfg, target=Positions, new=Alibi.Config(), where=self.config.where)
        return cfg


class WithoutPositions(kn.Modifier):
    """`no-positions`: attention learns order from the causal mask alone (Kazemnejad et al. 2023, arXiv:2305.19466)."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` removed."""
        kn.replace(cfg, target=Positions, new=NoPositions.Config(), where=self.config.where)
        return cfg


class RelativePositions(kn.Modifier):
    """`relative-bias`: T5's trained bias of bucketed distances, one a layer."""

    class Config(kn.Modifier.Config):
        num_buckets: int = 32
        max_distance: int = 128
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        own = self.config
        new = RelativeBias.Config(num_buckets=own.num_buckets, max_distance=own.max_distance)
        kn.replace(cfg, target=Positions, new=new, where=own.where)
        return cfg
