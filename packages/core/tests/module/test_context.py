"""Contexts: parameters, keys, outputs and state reach the module they belong to, and nothing leaks."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.errors import ContextError, ModuleError


class Scale(kn.Module):
    class Config(kn.Module.Config):
        input_dim: int = kn.FROM_PARENT

    def setup(self) -> None:
        self.add_param("scale", (self.config.input_dim,), axes=("norm",), init=kn.ones)
        self.add_state("calls", (), axes=())

    def forward(self, x: jax.Array) -> jax.Array:
        y = x * self.param("scale")[None, :]
        self.record("mean", kn.Mean.of(y))
        self.emit("output", y)
        self.update("calls", self.state("calls") + 1)
        return y

    def noisy(self, x: jax.Array) -> jax.Array:
        return x + jax.random.normal(self.next_key(), x.shape)

    def bare(self, x: jax.Array) -> jax.Array:
        return jax.checkpoint(lambda z: z * self.param("scale")[None, :])(x)

    def records_under_vmap(self, x: jax.Array) -> jax.Array:
        def body(z: jax.Array) -> jax.Array:
            self.record("inner", kn.Sum(z.sum()))
            return z

        return jax.vmap(body)(x)


class Pair(kn.Module):
    class Config(kn.Module.Config):
        width: int = 4
        first: Scale.Config = Scale.Config()
        second: Scale.Config = Scale.Config()

    def setup(self) -> None:
        self.add_child("first", self.config.first, input_dim=self.config.width)
        self.add_child("second", self.config.second, input_dim=self.config.width)
        self.share("tied", self.first)

    def forward(self, x: jax.Array) -> jax.Array:
        return self.second(self.first(x))

    def twice(self, x: jax.Array) -> jax.Array:
        return self.first(self.first(x))

    def twice_named(self, x: jax.Array) -> jax.Array:
        y = self.first(x)
        with kn.call_name("again"):
            return self.first(y)

    def noise(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.first.noisy(x), self.second.noisy(x)

    def noise_twice(self, x: jax.Array) -> jax.Array:
        return self.first.noisy(self.first.noisy(x))

    def steals(self, x: jax.Array) -> jax.Array:
        return x * self.first.param("scale")[None, :]

    def fails(self, x: jax.Array) -> jax.Array:
        return self.second.bare(x)


@pytest.fixture(scope="module")
def pair() -> tuple[Pair, dict, dict]:
    module = Pair.Config().build()
    key = jax.random.key(0)
    return module, kn.initialize(module, key), kn.initial_state(module, key)


X = jnp.ones((2, 4))


def test_parameter_tree_and_paths_follow_the_config(pair):
    module, params, state = pair
    assert set(params) == {"first", "second"}
    assert params["first"]["scale"].shape == (4,)
    assert set(state["first"]) == {"calls"}
    assert module.second.path == "second"


def test_outputs_are_keyed_by_path(pair):
    module, params, state = pair
    result, outputs = kn.functional(module)(params, state, X, emit=("second.*",))
    assert result.shape == (2, 4)
    assert set(outputs.metrics) == {"first.mean", "second.mean"}
    assert float(outputs.metrics["first.mean"].value()) == 1.0
    assert set(outputs.emitted) == {"second.output"}
    assert float(outputs.state["first.calls"]) == 1.0


def test_the_call_is_pure_and_traceable(pair):
    module, params, state = pair
    f = kn.functional(module)
    jitted, outputs = jax.jit(f)(params, state, X)
    eager, _ = f(params, state, X)
    assert jnp.array_equal(jitted, eager)
    grad = jax.grad(lambda p: f(p, state, X)[0].sum())(params)
    assert float(grad["first"]["scale"].sum()) == 8.0
    assert set(outputs.state) == {"first.calls", "second.calls"}


def test_keys_depend_on_names_not_on_order(pair):
    module, params, state = pair
    key = jax.random.key(7)
    (first, second), _ = kn.functional(module, "noise")(params, state, X, key=key)
    assert not jnp.array_equal(first, second)
    alone, _ = kn.functional(module.second, "noisy")(params["second"], state["second"], X, key=key)
    assert not jnp.array_equal(alone, second)
    (again, _), _ = kn.functional(module, "noise")(params, state, X, key=key)
    assert jnp.array_equal(first, again)


def test_calling_twice_is_an_error_unless_named(pair):
    module, params, state = pair
    with pytest.raises(ContextError, match=r"'first.mean' already has a value.*kn.call_name"):
        kn.functional(module, "twice")(params, state, X)
    _, outputs = kn.functional(module, "twice_named")(params, state, X)
    assert set(outputs.metrics) == {"first.mean", "first@again.mean"}


def test_drawing_the_same_noise_twice_is_an_error(pair):
    module, params, state = pair
    with pytest.raises(ContextError, match="'first' already has a value among the random draws"):
        kn.functional(module, "noise_twice")(params, state, X, key=jax.random.key(0))


def test_a_missing_key_says_what_to_pass(pair):
    module, params, state = pair
    with pytest.raises(ContextError, match=r"first draws random numbers, but has no key; pass key="):
        kn.functional(module, "noise")(params, state, X)


def test_reading_another_modules_parameter_is_an_error(pair):
    module, params, state = pair
    with pytest.raises(ContextError, match="param of first was used while Pair is running"):
        kn.functional(module, "steals")(params, state, X)


def test_bare_checkpoint_names_the_wrapper_and_the_module(pair):
    module, params, state = pair
    with pytest.raises(ContextError, match=r"second: param\('scale'\) is read inside.*kn.remat") as caught:
        kn.functional(module, "fails")(params, state, X)
    assert any("in module second, Scale.bare(float32[2, 4])" in note for note in caught.value.__notes__)


def test_recording_under_bare_vmap_is_an_error(pair):
    module, params, state = pair
    with pytest.raises(ContextError, match="would leak or vanish"):
        kn.functional(module.first, "records_under_vmap")(params["first"], state["first"], X)


def test_no_context_outside_of_functional(pair):
    module, _, _ = pair
    with pytest.raises(ContextError, match="no module is running"):
        module.first(X)


def test_declarations_are_checked():
    class Bad(kn.Module):
        class Config(kn.Module.Config):
            width: int = 4

        def setup(self) -> None:
            self.add_child("norm", Scale.Config(), input_dim=4)

    with pytest.raises(ModuleError, match="child 'norm' has no config field of that name"):
        Bad.Config().build()


def test_unknown_parent_field_has_near_names():
    class Wrong(kn.Module):
        class Config(kn.Module.Config):
            norm: Scale.Config = Scale.Config()

        def setup(self) -> None:
            self.add_child("norm", self.config.norm, input_dims=4)

    with pytest.raises(ModuleError, match="'input_dims'.*did you mean 'input_dim'"):
        Wrong.Config().build()


def test_a_set_value_that_contradicts_the_parent_is_an_error():
    with pytest.raises(ModuleError, match="first.input_dim is set to 3, but its parent derives 4"):
        Pair.Config(first=Scale.Config(input_dim=3)).build()


def test_built_config_shows_derived_values():
    module = Pair.Config(width=6).build()
    assert module.built_config().first.input_dim == 6
    assert module.config.first.input_dim is kn.FROM_PARENT
