"""Weighted modules: one way to declare and multiply weights, whatever form keeps them and whatever adapts them."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.plain import from_plain, is_tuned, plain_config, to_plain
from kanawa.contracts import Adapter, Weighted, WeightForm
from kanawa.errors import ModuleError


class Halves(WeightForm):
    """Keeps half of a weight under its name and the other half beside it: loses nothing, so results are exact."""

    def specs(self, spec):
        return {"": spec, "_rest": spec}

    def store(self, weight, spec):
        return {"": weight * 0.25, "_rest": weight * 0.75}

    def dense(self, stored, spec, dtype):
        return (stored[""] + stored["_rest"]).astype(dtype)

    def matmul(self, x, stored, spec):
        weight = self.dense(stored, spec, x.dtype)
        return jnp.tensordot(x, weight, len(spec.fan_in_axes))


class Shift(Adapter):
    """Adds a multiple of the weight itself; starts at none."""

    def setup(self):
        self.add_param("amount", (), axes=(), init=kn.zeros)

    def forward(self, x, y, weight):
        return y + self.param("amount") * jnp.tensordot(x, weight(), 1)

    def merged(self, params, weight):
        return weight * (1.0 + params["amount"])


class Projection(Weighted):
    class Config(Weighted.Config):
        adapter: Adapter.Config | None = None

    def setup(self):
        super().setup()
        self.add_weight("weight", (3, 4), axes=("embed", "mlp"))
        self.add_child("adapter", self.config.adapter, input_shape=(3,), output_shape=(4,), axes=("embed", "mlp"))

    @kn.nowrap
    def adapter_of(self, name):
        return self.adapter

    def forward(self, x):
        y = self.matmul(x, "weight")
        return y if self.adapter is None else self.adapter(x, y, lambda: self.dense_weight("weight"))


class Tower(kn.Module):
    class Config(kn.Module.Config):
        layer: Projection.Config = Projection.Config()
        single: Projection.Config = Projection.Config()

    def setup(self):
        self.add_child("layer", self.config.layer, stacked=3)
        self.add_child("single", self.config.single)

    def forward(self, x):
        ys = kn.scan(lambda carry, _: (carry, self.layer(x)), None, over="layer")[1]
        return ys, self.single(x)


KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 3))
PLAIN = Tower.Config()
TUNED = Tower.Config(
    layer=Projection.Config(form=Halves.Config(), adapter=Shift.Config()),
    single=Projection.Config(form=Halves.Config()),
)


def run(cfg, params):
    return kn.functional(cfg.build())(params, {}, X)[0]


def close(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: jnp.allclose(x, y, atol=1e-6), a, b))


@pytest.fixture(scope="module")
def plain():
    return kn.initialize(PLAIN.build(), KEY)


def test_without_a_form_it_is_one_array_and_a_product(plain):
    ys, y = run(PLAIN, plain)
    assert jnp.allclose(y, X @ plain["single"]["weight"], atol=1e-6)
    assert jnp.allclose(ys[2], X @ plain["layer"]["weight"][2], atol=1e-6)


def test_a_form_decides_which_arrays_there_are():
    specs = flatten_paths(kn.param_specs(TUNED.build()))
    assert set(specs) == {
        "layer.weight",
        "layer.weight_rest",
        "layer.adapter.amount",
        "single.weight",
        "single.weight_rest",
    }
    assert specs["layer.weight_rest"].shape == (3, 3, 4)


def test_a_tuned_model_starts_as_the_plain_one(plain):
    module = TUNED.build()
    params = from_plain(module, plain, KEY)
    assert close(run(TUNED, params), run(PLAIN, plain))
    assert close(to_plain(module, params), plain)


def test_what_an_adapter_learnt_is_merged_layer_by_layer(plain):
    module = TUNED.build()
    params = from_plain(module, plain, KEY)
    params["layer"]["adapter"]["amount"] = jnp.array([0.0, 1.0, -0.5])
    assert close(run(PLAIN, to_plain(module, params)), run(TUNED, params))
    merged = to_plain(module, params)
    assert jnp.allclose(merged["layer"]["weight"][1], 2.0 * plain["layer"]["weight"][1], atol=1e-6)
    assert close(merged["single"], plain["single"])


def test_the_plain_config_comes_back():
    assert plain_config(TUNED) == PLAIN
    assert TUNED.layer.form is not None, "a copy is cleared"
    assert is_tuned(TUNED.build())
    assert not is_tuned(PLAIN.build())
    assert is_tuned(Tower.Config(single=Projection.Config(adapter=Shift.Config())).build())


def test_parameters_that_do_not_fit_are_all_named(plain):
    module = TUNED.build()
    wrong = {"layer": {"weight": plain["layer"]["weight"][:2]}, "singel": plain["single"]}
    with pytest.raises(ModuleError) as error:
        from_plain(module, wrong, KEY)
    text = str(error.value)
    assert "missing: single.weight, single.weight_rest" in text
    assert "unexpected: singel.weight; did you mean 'single.weight'" in text
    assert "layer.weight is (2, 3, 4), expected (3, 3, 4)" in text


def test_an_unknown_weight_has_near_names():
    module = PLAIN.build().single
    with pytest.raises(ModuleError, match="single has no weight 'wieght'; did you mean 'weight'"):
        module.stored_specs("wieght")


def test_the_compute_dtype_is_the_plans(plain):
    with kn.use_plan(kn.ExecutionPlan(precision=kn.Precision("bfloat16"))):
        _, y = kn.functional(PLAIN.build())(plain, {}, X.astype(jnp.bfloat16))[0]
    assert y.dtype == jnp.bfloat16


def test_gradients_reach_every_array_of_a_form(plain):
    params = from_plain(TUNED.build(), plain, KEY)
    gradient = jax.grad(lambda p: sum(jnp.sum(leaf**2) for leaf in run(TUNED, p)))(params)
    assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradient))
