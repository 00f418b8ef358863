"""Attention layers and caches that the tests of this folder run through, by name."""

from kanawa_layers.attention.dense_cache import DenseCache
from kanawa_layers.attention.dot_product import SigmoidDotProduct
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.attention.masks import AllOf, AnyOf, Causal, Chunked, Window
from kanawa_layers.attention.paged_cache import PagedCache
from kanawa_layers.attention.quantised_cache import QuantisedCache
from kanawa_layers.attention.ring_cache import RingCache
from kanawa_layers.attention.slots import ElementwiseGate, HeadGate, LearnedSinks, PerDimScale, TemperatureTuning
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.positions.biases import Alibi, NoPositions, RelativeBias
from kanawa_layers.positions.frequency_scaling import YarnScaling
from kanawa_layers.positions.rotary import Rotary

WIDTH = 16


def grouped(**changes):
    return GroupedQueryAttention.Config(input_dim=WIDTH, num_heads=4, num_kv_heads=2, head_dim=8, **changes)


def latent(**changes):
    sizes = {"kv_rank": 6, "nope_dim": 5, "rope_dim": 4, "value_dim": 7}
    return LatentAttention.Config(input_dim=WIDTH, num_heads=4, **sizes, **changes)


ATTENTIONS = {
    "plain": grouped(logit_cap=5.0, scale=0.5),
    "window": grouped(window=3, query_scale=PerDimScale.Config(), gate=HeadGate.Config()),
    "chunked": grouped(mask=Chunked.Config(size=4), qkv=Linear.Config(bias=True), query_norm=RMSNorm.Config()),
    "both": grouped(mask=AllOf.Config(masks=(Chunked.Config(size=8), Window.Config(left=3)))),
    "either": grouped(mask=AnyOf.Config(masks=(Window.Config(left=1), Chunked.Config(size=8)))),
    "sinks": grouped(
        window=5,
        sinks=LearnedSinks.Config(),
        positions=Rotary.Config(scaling=YarnScaling.Config(factor=4.0, original_length=8)),
    ),
    "tuned": grouped(
        positions=NoPositions.Config(),
        query_scale=TemperatureTuning.Config(floor_scale=4.0),
        gate=ElementwiseGate.Config(),
        norm_all_heads=True,
        query_norm=RMSNorm.Config(),
        key_norm=RMSNorm.Config(),
    ),
    "alibi": grouped(positions=Alibi.Config(), mask=Causal.Config()),
    "relative": grouped(positions=RelativeBias.Config(num_buckets=8, max_distance=10), window=4),
    "sigmoid": grouped(dot_product=SigmoidDotProduct.Config(length=8)),
    "latent": latent(),
    "latent-window": latent(window=3, gate=ElementwiseGate.Config(), sinks=LearnedSinks.Config()),
    "latent-low-rank": latent(query_rank=9, query_down=Linear.Config(bias=True)),
}

#: Masks that aren't known to be causal can't hide what a ring hasn't got.
NO_RING = {"either"}

CACHES = {
    "dense": DenseCache.Config(),
    "ring": RingCache.Config(),
    "paged": PagedCache.Config(page_size=4),
    "quantised": QuantisedCache.Config(),
    "quantised-ring": QuantisedCache.Config(codes=RingCache.Config(), scales=RingCache.Config()),
    "quantised-paged": QuantisedCache.Config(
        codes=PagedCache.Config(page_size=4), scales=PagedCache.Config(page_size=4)
    ),
}
