"""Convolutions against loops in NumPy; causality; sizes of what transposition makes."""

import itertools

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa_layers.basic.conv import Conv, ConvTranspose

DRAW = np.random.default_rng(0).standard_normal


def run(cfg, x):
    module = cfg.build(name="conv")
    params = jax.tree.map(
        lambda s: DRAW(s.shape, np.float32), kn.param_specs(module), is_leaf=lambda s: isinstance(s, kn.ParamSpec)
    )
    return params, np.asarray(jax.jit(kn.functional(module))(params, {}, x)[0])


def by_hand(x, weight, strides, dilation, padding, groups):
    """A loop over output positions, taps and groups."""
    rank = weight.ndim - 2
    x = np.pad(x.astype(np.float64), [(0, 0), *padding, (0, 0)])
    span = [(w - 1) * d + 1 for w, d in zip(weight.shape[:rank], dilation, strict=True)]
    shape = [(n - s) // st + 1 for n, s, st in zip(x.shape[1:-1], span, strides, strict=True)]
    per_in, per_out = weight.shape[-2], weight.shape[-1] // groups
    y = np.zeros((x.shape[0], *shape, weight.shape[-1]))
    for at in itertools.product(*map(range, shape)):
        for tap in itertools.product(*map(range, weight.shape[:rank])):
            where = tuple(a * s + t * d for a, s, t, d in zip(at, strides, tap, dilation, strict=True))
            for g in range(groups):
                rows = x[(slice(None), *where)][:, g * per_in : (g + 1) * per_in]
                columns = slice(g * per_out, (g + 1) * per_out)
                y[(slice(None), *at)][:, columns] += rows @ weight[tap][:, columns]
    return y


@pytest.mark.parametrize(
    ("changes", "shape", "padding", "groups"),
    [
        ({"window": (3,), "padding": "causal", "dilation": (2,)}, (7,), [(4, 0)], 1),
        ({"window": (3, 2), "strides": (2, 1), "padding": "valid"}, (6, 5), [(0, 0), (0, 0)], 1),
        ({"window": (3, 3), "groups": 2}, (4, 5), [(1, 1), (1, 1)], 2),
        ({"window": (3,), "depthwise": True, "bias": False}, (5,), [(1, 1)], 4),
        ({"window": (2, 1, 2), "padding": ((1, 0), (0, 0), (0, 2))}, (3, 2, 3), [(1, 0), (0, 0), (0, 2)], 1),
    ],
    ids=["causal-dilated", "strided", "grouped", "depthwise", "three-axes"],
)
def test_against_a_loop(changes, shape, padding, groups):
    cfg = Conv.Config(input_dim=4, output_dim=8, **changes)
    x = DRAW((2, *shape, 4), np.float32)
    params, actual = run(cfg, x)
    ones = (1,) * len(shape)
    wanted = by_hand(x, params["weight"], cfg.strides or ones, cfg.dilation or ones, padding, groups)
    np.testing.assert_allclose(actual, wanted + params.get("bias", 0.0), rtol=1e-4, atol=1e-4)


def test_causal_outputs_see_no_later_input():
    cfg = Conv.Config(input_dim=2, output_dim=3, window=(4,), padding="causal")
    module = cfg.build(name="conv")
    weight = DRAW((4, 2, 3), np.float32)
    call = lambda x: kn.functional(module)({"weight": weight, "bias": jnp.zeros(3)}, {}, x)[0][0]  # noqa: E731
    jacobian = jax.jacobian(call)(jnp.ones((1, 5, 2)))[:, :, 0]
    seen = np.abs(jacobian).sum((1, 3)) > 0
    np.testing.assert_array_equal(seen, [[0 <= t - s < 4 for s in range(5)] for t in range(5)])


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_transposition_is_the_gradient_of_a_strided_convolution(padding):
    cfg = ConvTranspose.Config(input_dim=3, output_dim=2, window=(3, 4), strides=(2, 2), padding=padding, bias=False)
    x = DRAW((1, 3, 4, 3), np.float32)
    params, actual = run(cfg, x)
    assert actual.shape == ((1, 6, 8, 2) if padding == "same" else (1, 7, 10, 2))
    # The kernel is not flipped here, while a gradient flips it: flip it back to compare.
    forward = np.flip(params["weight"], (0, 1)).swapaxes(-1, -2)
    down = lambda y: jax.lax.conv_general_dilated(  # noqa: E731
        y, forward, (2, 2), padding.upper(), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    (wanted,) = jax.vjp(down, jnp.zeros(actual.shape))[1](jnp.asarray(x))
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def test_flops_and_fans():
    conv = Conv.Config(input_dim=4, output_dim=8, window=(3, 3), groups=2).build(name="conv")
    assert conv.flops_per_token(1.0) == 2 * 9 * 2 * 8
    assert conv.param_specs["weight"].fans() == (18, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": (2,)}, r"strides \(2,\) doesn't have the 2 axes of window"),
        ({"padding": ((0, 0),)}, "padding .* doesn't have the 2 axes"),
        ({"groups": 3}, r"input_dim \(4\) and output_dim \(8\) are not both multiples of the 3 groups"),
        ({"depthwise": True, "groups": 2}, "depthwise means one group a channel"),
    ],
)
def test_bad_shapes(changes, message):
    with pytest.raises(ConfigError, match=message):
        Conv.Config(input_dim=4, output_dim=8, window=(3, 3), **changes).build(name="conv")
