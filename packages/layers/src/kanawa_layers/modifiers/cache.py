"""`cache`: how keys and values of past tokens are kept, by the cache's name in the catalog."""

import kanawa as kn
from kanawa.contracts import Cache

from kanawa_layers.attention.quantised_cache import QuantisedCache


class CacheKind(kn.Modifier):
    """Gives every attention a cache of `kind`; `int8` keeps the numbers in one of that kind as codes and scales."""

    class Config(kn.Modifier.Config):
        kind: str = "dense"
        int8: bool = False
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all caches replaced."""
        new = kn.component("caches", self.config.kind).Config()
        if self.config.int8:
            new = QuantisedCache.Config(codes=new, scales=new)
        kn.replace(cfg, target=Cache, new=new, where=self.config.where)
        return cfg
