"""Modifiers that give attention other positions than rotary ones, or none."""

import kanawa as kn
from kanawa.config.paths import match_path
from kanawa.contracts import Positions, SequenceMixer
from kanawa.errors import ConfigError

from kanawa_layers.positions.alibi import Alibi
from kanawa_layers.positions.none import NoPositions
from kanawa_layers.positions.relative_bias import RelativeBias


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
        num_buckets: int = 32
        max_distance: int = 128
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all positions under `where` replaced."""
        own = self.config
        new = RelativeBias.Config(num_buckets=own.num_buckets, max_distance=own.max_distance)
        return replace_positions(cfg, "relative-bias", new, own.where)


def replace_positions(cfg: kn.Config, modifier: str, new: Positions.Config, where: str) -> kn.Config:
    """Returns `cfg` with `new` in the place of every attention's positions under `where`.

    Raises ConfigError where layers share positions of one module outside of them, as T5's do: each attention would get
    its own, and the shared ones would be trained for nobody.
    """
    inside = [path for path, node in cfg.walk() if _fills(node, SequenceMixer)]
    shared = {
        path: type(node).__qualname__
        for path, node in cfg.walk()
        if _fills(node, Positions)
        and match_path(where, path)
        and not any(path.startswith(f"{mixer}.") for mixer in inside)
    }
    if shared:
        which = ", ".join(f"{path} ({kind})" for path, kind in shared.items())
        message = (
            f"{modifier}: {type(new).__qualname__} belongs inside each attention, but the layers share {which}; "
            f"replace their own with where=**.attention.positions, and drop what they share with "
            f"--set {next(iter(shared))}=None"
        )
        raise ConfigError(message)
    kn.replace(cfg, target=Positions, new=new, where=where)
    return cfg


def _fills(node: kn.Config, role: type) -> bool:
    return node._target is not None and issubclass(node._target, role)
