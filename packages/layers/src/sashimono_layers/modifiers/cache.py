"""`cache`: how keys and values of past tokens are kept, by the cache's name in the catalog."""

import sashimono as sm
from sashimono.contracts import Cache

from sashimono_layers.attention.quantised_cache import QuantisedCache


class CacheKind(sm.Modifier):
    """Gives every attention a cache of `kind`; `int8` keeps the numbers in one of that kind as codes and scales."""

    class Config(sm.Modifier.Config):
        kind: str = "dense"
        int8: bool = False
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with all caches replaced."""
        new = sm.component("caches", self.config.kind).Config()
        if self.config.int8:
            new = QuantisedCache.Config(codes=new, scales=new)
        sm.replace(cfg, target=Cache, new=new, where=self.config.where)
        return cfg
