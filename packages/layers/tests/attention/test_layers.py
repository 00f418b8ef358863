"""What each part of attention does to the result, against formulas written out in NumPy."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import ModuleError
from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.attention.dot_product import SigmoidDotProduct, SoftmaxDotProduct
from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional, PrefixLM
from kanawa_layers.attention.ring_cache import RingCache
from kanawa_layers.attention.slots import (
    ElementwiseGate,
    HeadGate,
    LearnedSinks,
    PerDimScale,
    TemperatureTuning,
    ZeroSinks,
)
from kanawa_layers.basic.linear import Linear
from kanawa_layers.positions.biases import Alibi, NoPositions
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recurrent.gated_delta_net import GatedDeltaNet
from kanawa_layers.recurrent.rattention import RAttention

from .kinds import WIDTH, grouped, latent

RANDOM = np.random.default_rng(3)
X = jnp.asarray(RANDOM.standard_normal((2, 6, WIDTH)), jnp.float32)


def random_parameters(layer):
    draw = lambda spec: jnp.asarray(0.3 * RANDOM.standard_normal(spec.shape), jnp.float32)  # noqa: E731
    return jax.tree.map(draw, kn.param_specs(layer), is_leaf=lambda leaf: isinstance(leaf, kn.ParamSpec))


def outcome(cfg, params=None, sequences=None, x=X):
    layer = cfg.build(name="attention")
    params = random_parameters(layer) if params is None else params
    return np.asarray(kn.functional(layer)(params, {}, x, sequences or Sequences())[0][0]), params


def scores_and_values(params):
    """Returns causal scores [B, H, T, S] and values [B, S, H, D] of `grouped(positions=none)`, by NumPy."""
    q, k, v = (np.einsum("bte,ehd->bthd", X, params[name]["weight"]) for name in ("query", "key", "value"))
    k, v = np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2)
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(8)
    return np.where(np.tril(np.ones((6, 6), bool)), scores, -np.inf), v


def projected(weights, v, params):
    return np.einsum("bhts,bshd,hde->bte", weights, v, params["output"]["weight"])


PLAIN = grouped(positions=NoPositions.Config())


@pytest.mark.parametrize("sinks", [LearnedSinks.Config(), ZeroSinks.Config()], ids=["learned", "zero"])
def test_sinks_are_a_column_more_in_the_softmax(sinks):
    actual, params = outcome(PLAIN.clone().set(sinks=sinks))
    scores, v = scores_and_values(params)
    logits = np.asarray(params["sinks"]["logits"]) if params.get("sinks") else np.zeros(4)
    column = np.broadcast_to(logits[None, :, None, None], (2, 4, 6, 1))
    weights = np.exp(np.concatenate([scores, column], axis=-1))
    weights = (weights / weights.sum(-1, keepdims=True))[..., :-1]
    np.testing.assert_allclose(actual, projected(weights, v, params), atol=1e-5)


class ByBias(SoftmaxDotProduct):
    """Knows no slopes."""

    takes_slopes = False


def test_alibi_is_left_to_kernels_where_they_can_make_it():
    cfg = grouped(positions=Alibi.Config())
    packed = Sequences(
        segment_ids=jnp.array([[1, 1, 1, 2, 2, 2]] * 2), positions=jnp.array([[0, 1, 2, 0, 1, 2]] * 2, jnp.int32)
    )
    ours, params = outcome(cfg, sequences=packed)
    dense, _ = outcome(cfg.clone().set(dot_product=ByBias.Config()), params, packed)
    np.testing.assert_allclose(ours, dense, atol=1e-6)
    for each, said in ((cfg, "alibi"), (cfg.clone().set(dot_product=ByBias.Config()), "bias")):
        layer = each.build(name="attention")
        outputs = jax.eval_shape(lambda params, layer=layer: kn.functional(layer)(params, {}, X, packed)[1], params)
        attending = [choice for choice in outputs.kernels if choice.operation == "attention"]
        assert [said in choice.problem for choice in attending] == [True]


def test_sigmoid_weighs_each_key_on_its_own():
    actual, params = outcome(PLAIN.clone().set(dot_product=SigmoidDotProduct.Config(length=6)))
    scores, v = scores_and_values(params)
    weights = 1.0 / (1.0 + 6.0 * np.exp(-scores))
    np.testing.assert_allclose(actual, projected(weights, v, params), atol=1e-5)


def test_a_sigmoid_has_no_sinks():
    cfg = PLAIN.clone().set(dot_product=SigmoidDotProduct.Config(), sinks=ZeroSinks.Config())
    with pytest.raises(ModuleError, match="sigmoid attention doesn't support sinks, which belong to a softmax"):
        outcome(cfg)


def test_the_fused_kernel_holds_the_three_by_key_heads():
    separate, params = outcome(PLAIN)
    q, k, v = (np.asarray(params[name]["weight"]) for name in ("query", "key", "value"))
    fused = np.concatenate([q.reshape(WIDTH, 2, 2, 8), k[:, :, None], v[:, :, None]], axis=2)
    params = {"qkv": {"weight": jnp.asarray(fused)}, "output": params["output"]}
    actual, _ = outcome(PLAIN.clone().set(qkv=Linear.Config()), params)
    np.testing.assert_allclose(actual, separate, atol=1e-5)


@pytest.mark.parametrize("gate", [ElementwiseGate.Config(), HeadGate.Config()], ids=["elements", "heads"])
def test_gates_open_by_a_sigmoid_of_the_input(gate):
    actual, params = outcome(PLAIN.clone().set(gate=gate))
    scores, v = scores_and_values(params)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    weight = np.asarray(params["gate"]["projection"]["weight"])
    opened = 1 / (1 + np.exp(-np.tensordot(X, weight, 1)))
    opened = opened if opened.ndim == 4 else opened[..., None]
    heads = np.einsum("bhts,bshd->bthd", weights, v) * opened
    np.testing.assert_allclose(actual, np.einsum("bthd,hde->bte", heads, params["output"]["weight"]), atol=1e-5)


def test_query_scales():
    q, positions = jnp.ones((1, 5, 2, 4)), jnp.arange(5)[None]
    tuning = TemperatureTuning.Config(coefficient=0.1, floor_scale=2.0).build(name="s")
    actual = kn.functional(tuning)({}, {}, q, positions)[0]
    np.testing.assert_allclose(actual[0, :, 0, 0], 1 + 0.1 * np.log([1, 2, 2, 3, 3]), rtol=1e-6)
    per_dim = PerDimScale.Config(head_dim=4).build(name="s")
    actual = kn.functional(per_dim)({"scale": jnp.zeros(4)}, {}, q, positions)[0]
    np.testing.assert_allclose(actual, q, rtol=1e-6)


def test_encoders_see_both_ways_and_prefixes_their_own():
    both, params = outcome(grouped(mask=Bidirectional.Config()))
    prefix = grouped(mask=PrefixLM.Config())
    whole, _ = outcome(prefix, params, Sequences(prefix_lengths=jnp.array([6, 6])))
    np.testing.assert_allclose(whole, both, atol=1e-5)
    none, _ = outcome(prefix, params, Sequences(prefix_lengths=jnp.array([0, 0])))
    causal, _ = outcome(grouped(), params)
    np.testing.assert_allclose(none, causal, atol=1e-5)
    assert np.abs(both - causal).max() > 1e-2


def test_a_ring_refuses_a_mask_that_is_not_causal():
    layer = grouped(mask=Bidirectional.Config(), cache=RingCache.Config()).build(name="attention")
    specs = layer.cache_spec(2, 8, "float32")
    cache = {name: jnp.zeros(spec.shape) for name, spec in specs.items()}
    with pytest.raises(ModuleError, match="the mask full isn't causal, and only causality hides this cache"):
        kn.functional(layer)(random_parameters(layer), {}, X, Sequences(lengths=jnp.zeros((), int)), cache)


def test_latent_attention_caches_the_latent_and_the_shared_key_only():
    specs = latent(query_rank=9).build(name="a").cache_spec(3, 10, "bfloat16")
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {"keys": ((3, 10, 1, 10), "bfloat16")}


CROSS = CrossAttention.Config(input_dim=WIDTH, num_heads=4, num_kv_heads=2, memory_dim=12, memory_length=7)
MEMORY = jnp.asarray(RANDOM.standard_normal((2, 5, 12)), jnp.float32)
IDS = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def test_padding_of_the_memory_is_not_seen():
    whole, params = outcome(CROSS, sequences=Sequences(memory=MEMORY, memory_segment_ids=IDS))
    changed = MEMORY.at[1, 3:].set(9.0)
    actual, _ = outcome(CROSS, params, Sequences(memory=changed, memory_segment_ids=IDS))
    np.testing.assert_allclose(actual, whole, atol=1e-6)
    cut, _ = outcome(CROSS, params, Sequences(memory=MEMORY[:, :3]))
    np.testing.assert_allclose(actual[1], cut[1], atol=1e-5)


def test_the_memory_is_projected_once_and_remembered():
    whole, params = outcome(CROSS, sequences=Sequences(memory=MEMORY, memory_segment_ids=IDS))
    layer = CROSS.build(name="attention")
    step = kn.functional(layer)
    cache = {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in layer.cache_spec(2, 20, "float32").items()}
    start = Sequences(lengths=jnp.zeros((), int), memory=MEMORY, memory_segment_ids=IDS)
    (first, cache), _ = step(params, {}, X[:, :2], start, cache)
    (rest, _), _ = step(params, {}, X[:, 2:], Sequences(lengths=jnp.full((), 2)), cache)
    np.testing.assert_allclose(np.concatenate([first, rest], 1), whole, atol=1e-5)
    assert cache["keys"].shape == (2, 7, 2, 4)


def test_no_memory_and_too_much_of_it():
    with pytest.raises(ModuleError, match=r"cross attention without a cache needs Sequences.memory, which is None"):
        outcome(CROSS)
    layer = CROSS.clone().set(memory_length=4).build(name="attention")
    cache = {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in layer.cache_spec(2, 20, "float32").items()}
    with pytest.raises(ModuleError, match="the memory has 5 tokens but its cache holds 4; raise memory_length"):
        kn.functional(layer)(random_parameters(layer), {}, X, Sequences(memory=MEMORY), cache)


@pytest.mark.parametrize("kind", [GroupedQueryAttention, CrossAttention, RAttention, GatedDeltaNet])
def test_channels_that_heads_do_not_divide_are_refused_unless_heads_have_a_width(kind):
    with pytest.raises(ModuleError, match=r"layer: 200 channels don't divide into 6 heads; 5 or 8 heads would fit"):
        kind.Config(input_dim=200, num_heads=6).build(name="layer")
    layer = kind.Config(input_dim=200, num_heads=6, head_dim=32).build(name="layer")
    shape = kn.param_specs(layer)["query"]["weight"].shape
    assert shape[0] == 200 and np.prod(shape[1:]) == 6 * 32


def test_a_window_that_sees_no_further_was_trained_for_any_length():
    def trained(**changes):
        return grouped(positions=Rotary.Config(trained_length=64), **changes).build(name="layer").trained_length()

    assert (trained(), trained(window=65), trained(window=64)) == (64, 64, None)
