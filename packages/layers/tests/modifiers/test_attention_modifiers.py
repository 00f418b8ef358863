"""Each modifier of attention reaches every recipe that has what it changes, and changes nothing else."""

import functools
import re

import kanawa as kn
import pytest
from kanawa.config import diff
from kanawa.config.paths import match_path
from kanawa.contracts import SequenceMixer
from kanawa.errors import ConfigError
from kanawa.plugins import host
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.attention.masks import Chunked
from kanawa_layers.attention.ring_cache import RingCache
from kanawa_layers.modifiers.attention import (
    AttentionBias,
    AttentionGate,
    AttentionMask,
    AttentionSinks,
    FusedQKV,
    KeyValueHeads,
    QKNorm,
    SlidingWindow,
    SoftCap,
)
from kanawa_layers.modifiers.by_name import CacheKind
from kanawa_layers.modifiers.positions import (
    AlibiPositions,
    RelativePositions,
    RopeDynamicNTK,
    RopeLongRope,
    RopeYarn,
    WithoutPositions,
)
from kanawa_layers.recipes.llama import llama_tiny

LATENT = {"num_heads": 2, "kv_rank": 4, "nope_dim": 4, "rope_dim": 2, "value_dim": 4}
FACTORS = tuple(float(i) for i in range(1, 17))
#: A modifier, and the slots of attention it may touch.
CASES = {
    "window": (SlidingWindow.Config(size=7), ("window",)),
    "soft-cap": (SoftCap.Config(cap=30.0), ("logit_cap",)),
    "qk-norm": (QKNorm.Config(all_heads=True), ("query_norm", "key_norm", "norm_all_heads")),
    "attention-bias": (AttentionBias.Config(output=True), ("query", "key", "value", "output", "query_down", "kv_down")),
    "attention-gate": (AttentionGate.Config(), ("gate",)),
    "attention-mask": (AttentionMask.Config(mask=Chunked.Config(size=8)), ("mask",)),
    "kv-heads": (KeyValueHeads.Config(count=1), ("num_kv_heads",)),
    "fused-qkv": (FusedQKV.Config(), ("qkv",)),
    "sinks": (AttentionSinks.Config(), ("sinks",)),
    "cache": (CacheKind.Config(kind="ring"), ("cache",)),
    "cache-int8": (CacheKind.Config(kind="paged", int8=True), ("cache",)),
    "alibi": (AlibiPositions.Config(), ("positions",)),
    "no-positions": (WithoutPositions.Config(), ("positions",)),
    "relative-bias": (RelativePositions.Config(), ("positions",)),
    "rope-yarn": (RopeYarn.Config(), ("positions",)),
    "rope-dynamic-ntk": (RopeDynamicNTK.Config(), ("positions",)),
    "rope-longrope": (RopeLongRope.Config(short_factors=FACTORS, long_factors=FACTORS), ("positions",)),
}


@pytest.mark.parametrize("case", CASES)
class TestAttentionModifiers(ModifierConformance):
    """The kit's checks, once for each case."""

    @pytest.fixture(autouse=True)
    def _case(self, case):
        self.case, slots = CASES[case]
        self.touches = tuple(f"**.attention.{slot}{rest}" for slot in slots for rest in ("", ".**"))

    def modifier(self):
        return self.case.build()

    def config(self):
        return llama_tiny()


@functools.cache
def recipes():
    """Returns one model of each family in the catalog that has attention, by name."""
    families = {}
    for state in host().components("models"):
        recipe = kn.component("models", state.name)
        families.setdefault(recipe.__module__, (state.name, recipe))
    configs = {name: recipe() for name, recipe in families.values()}
    return {name: cfg for name, cfg in configs.items() if attention_paths(cfg)}


def attention_paths(cfg):
    return [path for path, node in cfg.walk() if node._target is not None and issubclass(node._target, SequenceMixer)]


@pytest.mark.parametrize("case", CASES)
def test_every_recipe_is_reached_and_nothing_but_attention_is_touched(case):
    modifier, slots = CASES[case]
    reached = 0
    for name, before in recipes().items():
        layers = attention_paths(before)
        try:
            after = modifier.build()(before.clone())
        except ConfigError as refusal:
            # A recipe without such a slot: latent attention has no keys to norm, GPT-2 no rotary embedding.
            assert re.search("has no|no (Rotary|Positions|Cache) under|never decodes", str(refusal)), name
            continue
        reached += 1
        allowed = [f"{path}.{slot}{rest}" for path in layers for slot in slots for rest in ("", ".**")]
        allowed += [f"{path}.qkv.bias" for path in layers]
        # An attention that selects keys has a cache and positions of its own for that.
        allowed += [f"{path}.{kind}{slot}{rest}" for path in layers for kind in ("index_", "indexer.") for slot in slots
                    for rest in ("", ".**")]  # fmt: skip
        if "positions" in slots:
            allowed += ["*.relative_bias", "*.relative_bias.**"]  # T5 shares one among its layers
        for change in diff(before, after):
            assert any(match_path(glob, change.path) for glob in allowed), (name, change)
    assert reached > len(recipes()) / 2


def test_an_attention_without_the_field_is_named():
    cfg = llama_tiny()
    kn.replace(cfg, target=SequenceMixer, new=LatentAttention.Config(**LATENT))
    wanted = r"nothing under '\*\*' takes num_kv_heads: LatentAttention.Config has no num_kv_heads"
    with pytest.raises(ConfigError, match=wanted):
        KeyValueHeads.Config().build()(cfg)


def test_modified_models_can_be_built():
    cfg = llama_tiny()
    for name in ("window", "soft-cap", "qk-norm", "attention-bias", "sinks", "attention-gate", "cache", "rope-yarn"):
        cfg = CASES[name][0].build()(cfg)
    layer = cfg.build().stack.layer.attention
    assert layer.cache.config.reach == 7
    assert isinstance(layer.cache, RingCache)
    assert layer.cache_spec(2, 100, "float32")["keys"].shape == (2, 7, 2, 32)
    assert set(layer.query.param_specs) == {"weight", "bias"}
    assert layer.sinks.param_specs["logits"].shape == (6,)
