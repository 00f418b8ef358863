"""ParamSpec: shape, fans, draws and stacking of one parameter."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.arrays.init import Constant, FanNormal, Normal, fan_in_normal, normal, ones, zeros
from kanawa.arrays.spec import ParamSpec
from kanawa.errors import ShardingError

KEY = jax.random.key(0)
MATRIX = ParamSpec((6, 4, 2), ("embed", "heads", "head_dim"), fan_out_axes=(-2, -1))


def test_axes_name_every_dimension_in_the_legends_words():
    with pytest.raises(ShardingError, match=r"shape \(3, 4\) has 2 dimensions but axes \('embed',\) name 1"):
        ParamSpec((3, 4), ("embed",))
    with pytest.raises(ShardingError, match="unknown logical axis 'embedd'; did you mean 'embed'"):
        ParamSpec((3,), ("embedd",))
    assert ParamSpec((3,), (None,)).axes == (None,)


@pytest.mark.parametrize(
    ("spec", "fans"),
    [
        (ParamSpec((6, 4), ("embed", "mlp")), (6, 4)),
        (MATRIX, (6, 8)),
        (ParamSpec((), ()), (1, 1)),
        (ParamSpec((5,), ("norm",)), (5, 5)),
        (ParamSpec((3, 6, 4), ("experts", "embed", "mlp"), fan_in_axes=(1,), fan_out_axes=(2,)), (6, 4)),
    ],
)
def test_fans_are_those_of_one_layer(spec, fans):
    assert spec.fans() == fans
    assert spec.stacked(3).fans() == fans
    assert spec.stacked(3).stacked(2).fans() == fans


@settings(max_examples=20)
@given(st.lists(st.integers(1, 5), max_size=3), st.integers(1, 4))
def test_stacking_puts_layers_in_front(shape, length):
    spec = ParamSpec(tuple(shape), (None,) * len(shape), dtype="bfloat16", weight_decay=0.5)
    stacked = spec.stacked(length)
    assert stacked.shape == (length, *shape)
    assert stacked.axes == ("layers", *spec.axes)
    assert stacked.size == length * spec.size
    assert stacked.num_bytes == 2 * stacked.size
    assert (stacked.weight_decay, stacked.num_stacked) == (0.5, 1)
    assert stacked.draw(KEY).shape == tuple(shape), "a draw is one layer's"


def test_its_abstract_form_is_what_is_drawn():
    abstract, drawn = MATRIX.abstract(), MATRIX.draw(KEY)
    assert (abstract.shape, abstract.dtype) == (drawn.shape, drawn.dtype)
    assert abstract.sharding is None


def spread(init, shape=(200, 300), fan_in=200, fan_out=300, dtype="float32"):
    return np.asarray(init(KEY, shape, jnp.dtype(dtype), fan_in, fan_out), np.float32)


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize(("fan", "size"), [("in", 200), ("out", 300), ("average", 250)])
@pytest.mark.parametrize("truncated", [True, False])
def test_fan_normals_have_the_variance_they_promise(scale, fan, size, truncated):
    drawn = spread(FanNormal(scale, fan, truncated))
    stddev = math.sqrt(scale / size)
    assert abs(drawn.mean()) < 0.02 * stddev
    assert abs(drawn.std() / stddev - 1) < 0.02, "truncation is made up for"
    assert (np.abs(drawn).max() <= 2.28 * stddev) == truncated


def test_normals_and_constants():
    assert abs(spread(normal(0.3)).std() / 0.3 - 1) < 0.02
    assert np.abs(spread(Normal(0.3, truncated=True))).max() <= 2 * 0.3 / 0.8796 + 1e-6
    assert (spread(zeros) == 0).all()
    assert (spread(ones) == 1).all()
    assert (spread(Constant(-2.5)) == -2.5).all()


def test_a_narrow_parameter_is_the_wide_draw_rounded():
    """Drawn in fp32 and cast: another dtype doesn't mean another model."""
    wide, narrow = spread(fan_in_normal()), spread(fan_in_normal(), dtype="bfloat16")
    assert np.array_equal(narrow, np.asarray(jnp.asarray(wide).astype(jnp.bfloat16), np.float32))


def test_initialisers_read_as_text_and_compare():
    assert repr(fan_in_normal(2.0)) == "FanNormal(scale=2.0, fan='in', truncated=True)"
    assert fan_in_normal() == FanNormal()
    assert len({zeros, ones, Constant(0.0), normal(1.0)}) == 3
