"""`intervene`: a model goes on with what the caller puts in the place of an emitted value."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ContextError
from kanawa.module import EmissionError

X = jnp.arange(3.0)


class Double(kn.Module):
    """Doubles its input, and emits the result; `made` is computed where somebody asks."""

    class Config(kn.Module.Config):
        pass

    def forward(self, x: jax.Array) -> jax.Array:
        self.emit_made("made", lambda: x - 1.0)
        return self.emit("output", 2.0 * x)


class Tower(kn.Module):
    """Three layers, by a scan that may be written out or recomputed, and one more after them."""

    class Config(kn.Module.Config):
        layer: Double.Config = Double.Config()
        last: Double.Config = Double.Config()
        unrolled: bool = False
        remat: bool = False

    def setup(self) -> None:
        self.add_child("layer", self.config.layer, stacked=3)
        self.add_child("last", self.config.last)

    def forward(self, x: jax.Array) -> jax.Array:
        options = {"over": "layer", "unrolled": self.config.unrolled, "remat": self.config.remat}
        x, _ = kn.scan(lambda c, _: (self.layer(c), None), x, **options)
        return self.last(x)


def run(intervene, x=X, emit=(), **fields):
    return kn.functional(Tower.Config(**fields).build())({}, {}, x, emit=emit, intervene=intervene)


@pytest.mark.parametrize("fields", [{}, {"unrolled": True}, {"remat": True}], ids=str)
def test_one_layer_of_a_stack_is_changed_and_what_follows_sees_it(fields):
    def replaced(value, layer):
        return jnp.where(layer == 1, 10.0, value)

    out, outputs = jax.jit(lambda x: run({"layer.output": replaced}, x, emit="layer.output", **fields))(X)
    np.testing.assert_array_equal(out, jnp.full(3, 40.0))
    np.testing.assert_array_equal(outputs.emitted["layer.output"], [2 * X, [10.0] * 3, [20.0] * 3])
    np.testing.assert_array_equal(run(None, **fields)[0], 16 * X)


def test_outside_of_a_stack_there_is_no_layer_and_patterns_apply_in_order():
    seen = []
    changes = {"last.*": lambda x, layer: seen.append(layer) or x + 1.0, "**.output": lambda x, layer: x * 10.0}
    out, _ = run(changes)
    assert seen == [None]
    np.testing.assert_array_equal(out, (2 * (20.0**3 * X) + 1) * 10)


def test_gradients_go_through_the_change_and_to_what_it_closes_over():
    def total(x, steering):
        return run({"last.output": lambda value, layer: value * steering}, x)[0].sum()

    dx, dsteering = jax.grad(total, argnums=(0, 1))(X, jnp.float32(3.0))
    np.testing.assert_array_equal(dx, [48.0] * 3)
    assert dsteering == 16 * X.sum()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"last.outptu": lambda x, layer: x},
            r"intervene\['last.outptu'\] matches nothing that Tower.forward emits.*did",
        ),
        (
            {"last.output": lambda x, layer: x[:2]},
            r"intervene\['last.output'\] returned float32\[2\] for last.output, whi",
        ),
        ({"last.output": lambda x, layer: x.astype(jnp.bfloat16)}, r"returned bfloat16\[3\] .* is float32\[3\]"),
        (
            {"last.made": lambda x, layer: x},
            r"intervene\['last.made'\] matches nothing that Tower.forward emits and goes on with; ",
        ),
    ],
)
def test_what_can_not_be_is_said(change, said):
    with pytest.raises(EmissionError, match=f"(?s){said}"):
        run(change)


def test_what_is_made_to_be_read_is_made_for_those_who_ask():
    made = "sub"
    assert made not in str(jax.make_jaxpr(lambda x: run(None, x)[0])(X))
    np.testing.assert_array_equal(run(None, emit="last.made")[1].emitted["last.made"], 8 * X - 1)


def test_a_change_inside_a_bare_transform_is_refused():
    class Bare(kn.Module):
        class Config(kn.Module.Config):
            pass

        def forward(self, x: jax.Array) -> jax.Array:
            return jax.checkpoint(lambda x: self.emit("output", x))(x)

    with pytest.raises(ContextError, match=r"emit\('output'\) is called inside a JAX transform"):
        kn.functional(Bare.Config().build())({}, {}, X, intervene={"output": lambda x, layer: x + 1.0})


def test_what_is_no_function_is_refused_with_what_it_is():
    with pytest.raises(EmissionError, match=r"intervene\['last'\] is a int, expected a function of the value and its"):
        run({"last": 0})
