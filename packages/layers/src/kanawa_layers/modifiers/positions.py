"""Modifiers that replace rotary positions by others, or remove them."""

import logging

import kanawa as kn
from kanawa.contracts import Positions, SequenceMixer

from kanawa_layers.positions.alibi import Alibi
from kanawa_layers.positions.none import NoPositions
from kanawa_layers.positions.relative_bias import RelativeBias, SharedRelativeBias

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
