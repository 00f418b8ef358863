"""Many adapters in one batch: each token gets its own one's change, and nothing of the others'."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, map_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors, adapter_pools, from_plain, to_plain
from kanawa.config import from_json, to_json
from kanawa.contracts import ADAPTERS, Sequences
from kanawa.errors import ConfigError, ModuleError
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.basic.linear import Linear
from kanawa_layers.modifiers.weights import DoRAModifier, LoRAModifier, LoRAPoolModifier, WeightOnlyModifier
from kanawa_layers.tune.lora_pool import LoRAPool

from .tiny_llama import TOKENS, tiny

SLOTS, RANK = 3, 4


class TestLoRAPool(LayerConformance):
    unsupported = {
        "gradients": "a pool is for serving; nothing trains it",
        "foreign names": "other libraries keep one adapter a folder",
    }

    def config(self):
        axes = ("embed", "heads", "head_dim")
        return Linear.Config(
            input_shape=(16,), output_shape=(2, 4), axes=axes, adapter=LoRAPool.Config(slots=2, rank=3)
        )

    def inputs(self, key):
        return (jax.random.normal(key, (2, 6, 16)),)


class TestLoRAPoolModifier(ModifierConformance):
    touches = ("stack.**.adapter", "stack.**.adapter.**")

    def config(self):
        return tiny()

    def modifier(self):
        return LoRAPoolModifier.Config(targets=("**.stack.**",)).build()


def random_adapter(seed, rank):
    """Returns a model with one LoRA on every projection of the stack, and its parameters."""
    module = LoRAModifier.Config(rank=rank, alpha=2.0 * rank, targets=("**.stack.**",)).build()(tiny()).build()
    rng = np.random.default_rng(seed)

    def move(path, spec):
        return jnp.asarray(0.1 * rng.standard_normal(spec.shape), jnp.float32) if ".adapter." in path else None

    return module, map_paths(move, kn.param_specs(module))


def put(pool_module, params, slot, factors):
    """Returns parameters with an adapter's factors in a slot, as an engine puts them."""
    flat, specs = dict(flatten_paths(params)), flatten_paths(kn.param_specs(pool_module))
    for path, (pool, depth) in adapter_pools(pool_module).items():
        assert depth == 1
        layers = [pool.slot(a, b) for a, b in zip(*factors[path], strict=True)]
        for name in layers[0]:
            value = np.stack([layer[name] for layer in layers])
            at = f"{path}.adapter.{name}"
            axis = specs[at].axes.index("adapters")
            flat[at] = flat[at].at[(slice(None),) * axis + (slot - 1,)].set(value)
    return unflatten_paths(flat)


@pytest.fixture(scope="module")
def served():
    """Returns the pool's model, its parameters with three adapters, and the logits of each merged model."""
    plain = tiny().build()
    base = jax.jit(lambda key: kn.initialize(plain, key))(jax.random.key(5))
    module = LoRAPoolModifier.Config(slots=SLOTS, rank=RANK).build()(tiny()).build()
    params = from_plain(module, base, jax.random.key(0))
    predict = jax.jit(lambda p: kn.functional(plain, "predict")(p, {}, TOKENS)[0])
    expected = [predict(base)]
    for slot, rank in enumerate((1, 4, 2), 1):
        one, own = random_adapter(slot, rank)
        flat = {**flatten_paths(base), **{p: x for p, x in flatten_paths(own).items() if x is not None}}
        expected.append(predict(to_plain(one, unflatten_paths(flat))))
        params = put(module, params, slot, adapter_factors(one, unflatten_paths(flat)))
    return module, params, expected


def decoded(module, params, sequences, tokens=TOKENS):
    spec = module.cache_spec(tokens.shape[0], tokens.shape[1], "float32")
    caches = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))
    decode = kn.functional(module, "decode")
    return jax.jit(lambda p, s, c: decode(p, {}, tokens, s, c)[0][0])(params, sequences, caches)


def test_a_batch_with_three_adapters_and_none_gives_what_each_merged_model_gives(served):
    module, params, expected = served
    slots = jnp.array([2, 0, 1, 3], jnp.int32)
    together = decoded(module, params, Sequences(lengths=jnp.zeros((), jnp.int32), adapters=slots))
    for row, slot in enumerate(slots.tolist()):
        np.testing.assert_allclose(together[row], expected[slot][row], atol=2e-5)
    # The adapters do something, or all of this would hold of none.
    assert min(float(jnp.abs(expected[0] - e).max()) for e in expected[1:]) > 0.05


class Outer(kn.Module):
    """A projection of a stream whose sequences have adapters."""

    class Config(kn.Module.Config):
        inner: Linear.Config = kn.REQUIRED

    def setup(self):
        self.add_child("inner", self.config.inner)

    def forward(self, x, sequences):
        self.offer(ADAPTERS, sequences.token_adapters(x.shape[1]))
        return self.inner(x)


@pytest.fixture(scope="module")
def flat():
    pool = LoRAPool.Config(slots=2, rank=2)
    inner = Linear.Config(input_shape=(8,), output_shape=(5,), axes=("embed", "mlp"), adapter=pool)
    outer, rng = Outer.Config(inner=inner).build(), np.random.default_rng(0)
    params = map_paths(lambda _, spec: jnp.asarray(rng.standard_normal(spec.shape), jnp.float32), kn.param_specs(outer))
    return outer, params, jnp.asarray(rng.standard_normal((1, 7, 8)), jnp.float32)


def test_tokens_of_a_flat_batch_take_the_adapter_of_their_sequence(flat):
    outer, params, x = flat
    own = params["inner"]["adapter"]
    starts, slots = jnp.array([0, 3, 3, 6], jnp.int32), jnp.array([2, 1, 0], jnp.int32)
    sequences = Sequences(lengths=jnp.zeros(3, jnp.int32), query_starts=starts, adapters=slots)
    after, _ = kn.functional(outer)(params, {}, x, sequences)
    for token, slot in enumerate((2, 2, 2, 0, 0, 0)):
        change = own["lora_a"][:, slot - 1] @ own["lora_b"][slot - 1] if slot else jnp.zeros((8, 5))
        np.testing.assert_allclose(after[0, token], x[0, token] @ (params["inner"]["weight"] + change), atol=1e-5)


def test_without_slots_for_its_tokens_a_pool_does_nothing(served):
    module, params, expected = served
    np.testing.assert_allclose(
        decoded(module, params, Sequences(lengths=jnp.zeros((), jnp.int32))), expected[0], atol=2e-5
    )


def test_a_pool_beside_quantised_weights(served):
    _, params, _ = served
    cfg = LoRAPoolModifier.Config(slots=SLOTS, rank=RANK).build()(WeightOnlyModifier.Config().build()(tiny()))
    quantised = cfg.build()
    plain = {p: x for p, x in flatten_paths(params).items() if ".adapter." not in p}
    kept = from_plain(quantised, unflatten_paths(plain), jax.random.key(0))
    pools = {p: x for p, x in flatten_paths(params).items() if ".adapter." in p}
    kept = unflatten_paths({**flatten_paths(kept), **pools})
    lengths = jnp.zeros((), jnp.int32)
    without = decoded(quantised, kept, Sequences(lengths=lengths))
    with_ = decoded(quantised, kept, Sequences(lengths=lengths, adapters=jnp.array([0, 1, 2, 3], jnp.int32)))
    np.testing.assert_allclose(without[0], with_[0], atol=1e-5)
    assert all(float(jnp.abs(without[row] - with_[row]).max()) > 0.05 for row in (1, 2, 3))


def test_what_has_no_place_in_a_pool_is_refused(served):
    module, _, _ = served
    (pool, _), *_ = adapter_pools(module).values()
    with pytest.raises(ModuleError, match=r"an adapter of rank 9 doesn't fit .*, whose rank is 4; set rank=9"):
        pool.slot(np.zeros((32, 9)), np.zeros((9, 4, 8)))
    dora = DoRAModifier.Config(rank=2, targets=("**.stack.**",)).build()(tiny()).build()
    with pytest.raises(ModuleError, match="is a DoRA, whose change of the weight is no product of two factors"):
        adapter_factors(dora, map_paths(lambda _, spec: np.zeros(spec.shape, np.float32), kn.param_specs(dora)))
    with pytest.raises(ConfigError, match="has an adapter of its own"):
        LoRAPoolModifier.Config().build()(LoRAModifier.Config(targets=("**.stack.**",)).build()(tiny()))
    with pytest.raises(ConfigError, match="under 'nowhere'"):
        LoRAPoolModifier.Config(targets=("nowhere",)).build()(tiny())


def test_a_projection_of_other_tokens_than_the_streams_says_to_leave_it_out(flat):
    outer, params, x = flat
    sequences = Sequences(adapters=jnp.ones(4, jnp.int32))
    with pytest.raises(
        ModuleError, match=r"inner.adapter: the input has \[1, 7\] tokens.*assigned to \[4, 7\];.*leave this one out"
    ):
        kn.functional(outer)(params, {}, x, sequences)


def test_a_config_saved_as_a_lora_bank_loads():
    saved = to_json(LoRAPool.Config(slots=2, rank=2))
    saved["$type"] = "kanawa_layers.tune.lora_bank:LoRABank.Config"
    assert from_json(saved) == LoRAPool.Config(slots=2, rank=2)
