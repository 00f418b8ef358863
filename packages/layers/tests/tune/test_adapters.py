"""Adapters: nothing changes at the start, only they learn, and merged weights do the same."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.precision import Precision
from kanawa.arrays.tree import flatten_paths, map_paths, unflatten_paths
from kanawa.composition.plain import from_plain, plain_config
from kanawa.contracts import PrecisionConfig
from kanawa.errors import KanawaError
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.linear import Linear
from kanawa_layers.modifiers.weights import DoRAModifier, LoRAModifier, QLoRAModifier
from kanawa_layers.tune.lora import DoRA, LoRA

from .tiny_llama import logits, losses_of_ten_steps, tiny, to_plain, tuned

MODIFIERS = {"lora": LoRAModifier, "dora": DoRAModifier, "qlora": QLoRAModifier}


def is_adapter(path):
    return ".adapter." in path


def shaken(params):
    """Returns the parameters with every adapter moved away from its start."""
    rng = np.random.default_rng(3)

    def move(path, leaf):
        noise = jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32)
        return leaf + 0.1 * noise if is_adapter(path) else leaf

    return map_paths(move, params)


def linear(adapter):
    axes = ("embed", "heads", "head_dim")
    return Linear.Config(input_shape=(16,), output_shape=(2, 4), axes=axes, bias=True, adapter=adapter)


class TestLoRA(LayerConformance):
    unsupported = {"gradients": "lora_b starts at zero, so lora_a's first gradient is zero"}

    def config(self):
        return linear(LoRA.Config(rank=3, dropout=Dropout.Config(rate=0.5)))

    def inputs(self, key):
        return (jax.random.normal(key, (2, 6, 16)),)


class TestDoRA(TestLoRA):
    def config(self):
        return linear(DoRA.Config(rank=3))


class TestLoRAModifier(ModifierConformance):
    touches = ("stack.layer.attention.*.adapter", "stack.layer.attention.*.adapter.**")

    def config(self):
        return tiny()

    def modifier(self):
        return LoRAModifier.Config(targets=("**.attention.**",)).build()


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 4), st.floats(0.5, 64.0), st.sampled_from([LoRA, DoRA]), st.integers(0, 2**31 - 1))
def test_an_adapter_changes_nothing_until_it_is_trained(rank, alpha, kind, seed):
    key = jax.random.key(seed)
    plain, adapted = (linear(a).build() for a in (None, kind.Config(rank=rank, alpha=alpha)))
    params, x = kn.initialize(adapted, key), jax.random.normal(jax.random.fold_in(key, 1), (3, 16))
    base = {name: params[name] for name in ("weight", "bias")}
    # The same key draws the same weight: paths are what the draw depends on.
    assert (np.asarray(kn.initialize(plain, key)["weight"]) == np.asarray(base["weight"])).all()
    before, _ = kn.functional(plain)(base, {}, x)
    after, _ = kn.functional(adapted)(params, {}, x)
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("name", ["lora", "qlora"])
def test_only_adapters_learn_and_merged_weights_give_the_same_logits(name, plain):
    _, base, before = plain
    module = MODIFIERS[name].Config(rank=4).build()(tiny()).build()
    params = tuned(module, base)
    if name != "qlora":
        np.testing.assert_allclose(logits(module, params), before, atol=1e-5)
    falling = losses_of_ten_steps(module, params, is_adapter)
    assert np.isfinite(falling).all()
    assert falling[-1] < falling[0] - 0.1

    moved = shaken(params)
    merged = to_plain(module, moved)
    twin, _, _ = plain
    assert {p: a.shape for p, a in flatten_paths(merged).items()} == {
        p: a.shape for p, a in flatten_paths(base).items()
    }
    after = logits(module, moved)
    assert float(jnp.abs(after - before).max()) > 0.1
    np.testing.assert_allclose(logits(twin, merged), after, atol=2e-5)


def test_doras_merged_weight_does_the_same_and_its_columns_have_the_trained_magnitude():
    rng, magnitude = np.random.default_rng(4), jnp.array([[1.0, 0.5, 2.0, 1.5], [1.0, 1.0, 3.0, 0.25]])
    adapted = linear(DoRA.Config(rank=3)).build()
    weight, bias, a, b, x = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((16, 2, 4), (2, 4), (16, 3), (3, 2, 4), (5, 16))
    )
    own = {"lora_a": a, "lora_b": b, "magnitude": magnitude}
    after, _ = kn.functional(adapted)({"weight": weight, "bias": bias, "adapter": own}, {}, x)
    merged = adapted.adapter.merged(own, weight)
    np.testing.assert_allclose(jnp.einsum("bi,iho->bho", x, merged) + bias[None], after, atol=1e-4)
    lengths = jnp.linalg.norm(merged, axis=0) / jnp.linalg.norm(weight, axis=0)
    np.testing.assert_allclose(lengths, magnitude, rtol=1e-5)


def test_a_plain_config_comes_back():
    for modifier in MODIFIERS.values():
        assert plain_config(modifier.Config().build()(tiny())) == tiny()


def test_targets_limit_what_is_adapted_and_a_target_with_nothing_is_an_error():
    module = LoRAModifier.Config(targets=("**.query", "**.value")).build()(tiny()).build()
    adapted = {path.split(".adapter.")[0] for path in flatten_paths(kn.param_specs(module)) if is_adapter(path)}
    assert adapted == {"stack.layer.attention.query", "stack.layer.attention.value"}
    with pytest.raises(KanawaError, match=r"no Weighted under '\*\*\.quary'.*stack\.layer\.attention\.query"):
        LoRAModifier.Config(targets=("**.quary",)).build()(tiny())


def test_base_checkpoints_that_do_not_fit_are_named(plain):
    _, base, _ = plain
    module = LoRAModifier.Config().build()(tiny()).build()
    broken = {name: value for name, value in base.items() if name != "norm"}
    with pytest.raises(KanawaError, match=r"missing: norm\.scale\n  unexpected: nrom\.scale"):
        from_plain(module, {**broken, "nrom": base["norm"]}, jax.random.key(0))


class Job(kn.Config):
    """A model and the precision it computes in."""

    model: kn.Config = kn.REQUIRED
    precision: PrecisionConfig = PrecisionConfig()


@pytest.mark.parametrize("modifier", ["lora", "dora"])
def test_a_base_in_the_compute_dtype_computes_what_one_in_fp32_does(modifier):
    def stored(base):
        cfg = Job(model=tiny(), precision=PrecisionConfig(compute="bfloat16"))
        return MODIFIERS[modifier].Config(base=base).build()(cfg).model.build()

    wide, narrow = stored("float32"), stored("compute")
    specs = flatten_paths(kn.param_specs(narrow))
    query = specs["stack.layer.attention.query.weight"]
    assert (query.dtype, query.trainable) == ("bfloat16", False)
    # Embedding, head and norms aren't projections of the stack, and adapters learn.
    assert {spec.dtype for path, spec in specs.items() if ".weight" not in path or "stack" not in path} == {"float32"}
    params = shaken(kn.initialize(wide, jax.random.key(0)))
    held = {path: leaf.astype(specs[path].dtype) for path, leaf in flatten_paths(params).items()}
    with use_plan(ExecutionPlan(precision=Precision(compute="bfloat16"))):
        if modifier == "lora":
            np.testing.assert_array_equal(logits(wide, params), logits(narrow, unflatten_paths(held)))
        else:
            np.testing.assert_allclose(logits(wide, params), logits(narrow, unflatten_paths(held)), atol=0.02)
