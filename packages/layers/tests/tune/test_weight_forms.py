"""Other forms of weights: quantised training follows fp32 within bounds, quantised storage stays close."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.precision import Precision
from kanawa.arrays.tree import flatten_paths
from kanawa.kernels.number_formats import E4M3, E5M2, INT8
from kanawa.testing.layer import LayerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa_layers.basic.linear import Linear
from kanawa_layers.modifiers.weights import Fp8Modifier, Int8Modifier, WeightOnlyModifier
from kanawa_layers.tune.eight_bit_training import Fp8Training, Int8Training
from kanawa_layers.tune.weight_only import FrozenFloat, Int4Weights, Int8Weights, NF4Weights

from .tiny_llama import logits, losses_of_ten_steps, tiny, to_plain, tuned


def linear(form):
    axes = ("heads", "head_dim", "embed")
    return Linear.Config(input_shape=(4, 4), output_shape=(8,), axes=axes, form=form)


class _OnHeads(LayerConformance):
    def inputs(self, key):
        return (jax.random.normal(key, (2, 6, 4, 4)),)


class TestInt8Training(_OnHeads):
    unsupported = {"finite differences": "gradients pass straight through the rounding"}

    def config(self):
        return linear(Int8Training.Config())


class TestFp8Training(_OnHeads):
    unsupported = {"finite differences": "gradients pass straight through the rounding"}

    def config(self):
        return linear(Fp8Training.Config())


class _WeightOnly(_OnHeads):
    unsupported = {
        "gradients": "integers have none",
        "foreign names": "a quantised model is converted through the plain one",
    }


class TestFrozenFloat(_WeightOnly):
    unsupported = {**_WeightOnly.unsupported, "gradients": "it isn't trained"}

    def config(self):
        return linear(FrozenFloat.Config())


class TestInt8Weights(_WeightOnly):
    def config(self):
        return linear(Int8Weights.Config())


class TestInt4Weights(_WeightOnly):
    def config(self):
        return linear(Int4Weights.Config(group_size=8))


class TestNF4Weights(_WeightOnly):
    def config(self):
        return linear(NF4Weights.Config(group_size=8))


class _OnLlama(ModifierConformance):
    touches = ("stack.**.form", "stack.**.form.**")

    def config(self):
        return tiny()


class TestInt8Modifier(_OnLlama):
    def modifier(self):
        return Int8Modifier.Config().build()


class TestFp8Modifier(_OnLlama):
    def modifier(self):
        return Fp8Modifier.Config().build()


class TestWeightOnlyModifier(_OnLlama):
    def modifier(self):
        return WeightOnlyModifier.Config(bits=4, group_size=16).build()


def rms(x):
    """Root mean square."""
    return float(jnp.sqrt(jnp.mean(x * x)))


def _rounding(fmt, x, axes):
    """The largest error of rounding x, scaled over the given axes."""
    scale = np.abs(x).max(axis=axes, keepdims=True) / fmt.largest
    return scale * max(fmt.step / 2, fmt.relative_error * fmt.largest)


@pytest.mark.parametrize(
    ("form", "forward", "backward"),
    [(Int8Training, INT8, INT8), (Fp8Training, E4M3, E5M2)],
    ids=["int8", "fp8"],
)
def test_values_and_gradients_follow_fp32_within_the_formats_error(form, forward, backward):
    rng = np.random.default_rng(0)
    x, weight, dy = (rng.standard_normal(s).astype(np.float32) for s in ((5, 16), (16, 8), (5, 8)))
    module = linear(form.Config()).set(input_shape=(16,), axes=("embed", "mlp")).build()

    def product(w, x):
        return kn.functional(module)({"weight": w}, {}, x)[0]

    y, pull = jax.vjp(product, jnp.asarray(weight), jnp.asarray(x))
    dw, dx = pull(jnp.asarray(dy))

    def bound(a, fa, b, fb):
        ea, eb = _rounding(fa, a, 1), _rounding(fb, b, 0)
        return ea * np.abs(b).sum(0, keepdims=True) + (np.abs(a) + ea).sum(1, keepdims=True) * eb + 1e-5

    assert (np.abs(y - x @ weight) <= bound(x, forward, weight, forward)).all()
    assert (np.abs(dx - dy @ weight.T) <= bound(dy, backward, weight.T, forward)).all()
    weight_bound = 1e-5 if form is Int8Training else bound(x.T, forward, dy, backward)
    assert (np.abs(dw - x.T @ dy) <= weight_bound).all()
    assert float(jnp.abs(y - x @ weight).max()) > 1e-4, "nothing was quantised"


@pytest.mark.parametrize("modifier", [Int8Modifier, Fp8Modifier], ids=["int8", "fp8"])
def test_quantised_training_falls_nearly_as_fp32_does(modifier, plain):
    module, params, _ = plain
    exact = losses_of_ten_steps(module, params)
    quantised = losses_of_ten_steps(modifier.Config().build()(tiny()).build(), params)
    # Rounding is amplified from step to step: the first steps agree closely, the last only in how far they came.
    np.testing.assert_allclose(quantised[:5], exact[:5], atol=0.1)
    fall, exact_fall = quantised[0] - quantised[-1], exact[0] - exact[-1]
    assert fall > 0.9 * exact_fall


def test_the_chosen_kernel_is_in_the_manifest(plain):
    _, params, _ = plain
    module = Int8Modifier.Config().build()(tiny()).build()
    _, outputs = jax.eval_shape(lambda p: kn.functional(module, "predict")(p, {}, jnp.zeros((1, 4), jnp.int32)), params)
    assert "quantized_matmul.any.reference" in {choice.kernel for choice in outputs.kernels}


@pytest.mark.parametrize(
    ("bits", "group_size", "worst"), [(8, None, 0.03), (4, 16, 0.4)], ids=["int8", "int4 in groups of 16"]
)
def test_weight_only_logits_are_close_and_the_weights_are_small(bits, group_size, worst, plain):
    twin, base, before = plain
    module = WeightOnlyModifier.Config(bits=bits, group_size=group_size).build()(tiny()).build()
    params = tuned(module, base)
    query = params["stack"]["layer"]["attention"]["query"]
    assert query["weight"].dtype == (jnp.int8 if bits == 8 else jnp.uint8)
    assert query["weight"].size * 8 == base["stack"]["layer"]["attention"]["query"]["weight"].size * bits
    after = logits(module, params)
    # Weights are off by 0.5 % and 8 % (root mean square); the untrained model's small embeddings let four products
    # in a row amplify that four times.
    assert 0 < rms(after - before) < worst * rms(before)
    # The dequantised model is the same function, and quantising it again gives the same bits.
    dense = to_plain(module, params)
    np.testing.assert_allclose(logits(twin, dense), after, atol=1e-4)
    again = flatten_paths(tuned(module, dense))
    assert all((np.asarray(again[path]) == np.asarray(leaf)).all() for path, leaf in flatten_paths(params).items()
               if leaf.dtype != jnp.float32)  # fmt: skip


def test_scales_stay_fp32_where_the_model_computes_in_bf16(plain):
    _, base, before = plain
    module = WeightOnlyModifier.Config().build()(tiny()).build()
    params = tuned(module, base)
    with use_plan(ExecutionPlan(precision=Precision(compute="bfloat16"))):
        after = logits(module, params)
    assert rms(after - before) < 0.05 * rms(before)


def test_quantised_weights_are_not_trainable_and_keep_their_axes():
    module = WeightOnlyModifier.Config(bits=4, group_size=16).build()(tiny()).build()
    specs = flatten_paths(kn.param_specs(module))
    values, scales = (specs[f"stack.layer.attention.query.{name}"] for name in ("weight", "weight_scale"))
    assert values.axes == ("layers", "embed", "heads", "head_dim")
    assert (values.shape, scales.shape) == ((2, 16, 4, 8), (2, 2, 4, 8))
    assert not values.trainable
    assert not scales.trainable
    assert specs["norm.scale"].trainable
