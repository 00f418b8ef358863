"""Every cache passes through the conformance kit."""

from typing import ClassVar

from kanawa.testing.cache import CacheConformance

from .kinds import CACHES


class _Of(CacheConformance):
    cache: ClassVar[str]
    reach: ClassVar[int | None] = None

    def config(self):
        cfg = CACHES[self.cache].clone()
        return cfg.set(num_kv_heads=2, key_dim=8, value_dim=4, reach=self.reach)


class TestDense(_Of):
    cache = "dense"


class TestPaged(_Of):
    cache = "paged"


class TestRing(_Of):
    cache = "ring"
    reach = 4


class TestQuantised(_Of):
    cache = "quantised"
    tolerance = 0.01


class TestQuantisedPages(_Of):
    cache = "quantised-paged"
    tolerance = 0.01


class TestQuantisedRing(_Of):
    cache = "quantised-ring"
    reach = 4
    tolerance = 0.01


class TestKeysAlone(_Of):
    cache = "paged"
    unsupported: ClassVar = {"attention": "values are part of the keys"}

    def config(self):
        return super().config().set(value_dim=0)
