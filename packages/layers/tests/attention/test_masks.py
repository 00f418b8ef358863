"""Masks as config give the MaskSpec they say, and say how far back a cache must reach."""

import kanawa as kn
import pytest
from kanawa.errors import ConfigError
from kanawa.kernels import MaskSpec
from kanawa_layers.attention.masks import (
    AllOf,
    AnyOf,
    Bidirectional,
    Causal,
    Chunked,
    PrefixLM,
    Window,
    reach,
)

from .kinds import grouped


def spec(cfg):
    assert kn.from_json(kn.to_json(cfg)) == cfg
    return cfg.build().spec()


@pytest.mark.parametrize(
    ("mask", "wanted", "back"),
    [
        (Causal.Config(), MaskSpec(causal=True), None),
        (Bidirectional.Config(), MaskSpec(), None),
        (Window.Config(left=3), MaskSpec(causal=True, window=(3, None)), 4),
        (Window.Config(left=3, right=2), MaskSpec(window=(3, 2)), None),
        (Chunked.Config(size=8), MaskSpec(causal=True, chunk=8), 8),
        (PrefixLM.Config(), MaskSpec(causal=True, prefix=True), None),
        (
            AllOf.Config(masks=(Chunked.Config(size=8), Window.Config(left=2))),
            MaskSpec(causal=True, chunk=8, window=(2, None)),
            3,
        ),
        (
            AnyOf.Config(masks=(Chunked.Config(size=8), Window.Config(left=2))),
            MaskSpec(causal=True, chunk=8) | MaskSpec(causal=True, window=(2, None)),
            None,
        ),
    ],
    ids=lambda value: value.describe() if isinstance(value, MaskSpec) else None,
)
def test_config_to_spec(mask, wanted, back):
    assert spec(mask) == wanted
    assert reach(wanted) == back


def test_the_window_field_narrows_the_mask():
    layer = grouped(mask=Chunked.Config(size=8), window=3).build(name="a")
    assert layer.mask == MaskSpec(causal=True, chunk=8, window=(2, None))
    assert layer.cache.config.reach == 3


def test_a_window_needs_a_causal_mask():
    with pytest.raises(ConfigError, match=r"window 3 narrows a causal mask; use mask=Window.Config"):
        grouped(mask=Bidirectional.Config(), window=3).freeze()


def test_any_of_nothing():
    with pytest.raises(ConfigError, match="masks is empty, expected at least one"):
        AnyOf.Config(masks=()).freeze()
