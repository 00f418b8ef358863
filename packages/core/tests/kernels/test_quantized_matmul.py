"""Quantised products: error bounds that follow from the formats, packing, gradients, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.errors import KernelError
from kanawa.kernels.number_formats import (
    E4M3,
    E5M2,
    INT4,
    INT8,
    NF4,
    dequantize_rhs,
    pack,
    quantize_lhs,
    quantize_rhs,
    unpack,
)
from kanawa.kernels.quantized_matmul import ReferenceQuantizedMatmul, quantized_matmul
from kanawa.testing.kernel import KernelConformance

#: Published with QLoRA's code, appendix E of arXiv:2305.14314, rounded.
PUBLISHED_NF4 = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379,
                 0.4407, 0.5626, 0.7230, 1.0)  # fmt: skip


class TestReference(KernelConformance):
    def kernel(self):
        return ReferenceQuantizedMatmul()


def largest_error(fmt, scale):
    """Half a step of the format at a scale, or its relative error at the largest number it holds."""
    return scale * max(fmt.step / 2, fmt.relative_error * fmt.largest)


@pytest.mark.parametrize("fmt", [INT8, E4M3, E5M2, INT4, NF4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("groups", [1, 4])
def test_a_quantised_weight_is_within_half_a_step_of_the_original(fmt, groups):
    weight = jnp.asarray(np.random.default_rng(0).standard_normal((16, 3, 5)), jnp.float32)
    kept, scale = quantize_rhs(weight, fmt, 2, groups)
    assert scale.shape == (groups, 5)
    back = dequantize_rhs(kept, scale, fmt, weight.shape, 2)
    error = jnp.abs(back - weight).reshape(groups, -1, 5).max(1)
    assert bool((error <= largest_error(fmt, scale) * 1.0001).all())
    # Rounding again what was rounded changes nothing.
    again, _ = quantize_rhs(back, fmt, 2, groups)
    assert (np.asarray(again) == np.asarray(kept)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.randoms(use_true_random=False))
def test_packing_four_bit_codes_round_trips(rows, columns, random):
    codes = jnp.array([[random.randrange(16) for _ in range(columns)] for _ in range(rows)], jnp.uint8)
    packed = pack(codes)
    assert packed.shape == ((rows + 1) // 2, columns)
    assert packed.dtype == jnp.uint8
    assert (np.asarray(unpack(packed, rows)) == np.asarray(codes)).all()


def test_negative_int4_values_survive_packing():
    values = jnp.arange(-8, 8, dtype=jnp.int8)[:, None]
    assert (np.asarray(INT4.values(pack(values), 16, jnp.float32)) == np.asarray(values)).all()


def test_nf4_has_the_published_levels():
    np.testing.assert_allclose(NF4.levels, PUBLISHED_NF4, atol=6e-5)


@pytest.mark.parametrize(("left", "right"), [(INT8, INT8), (E4M3, E4M3), (E5M2, E4M3)], ids=lambda f: f.name)
def test_the_error_of_a_product_follows_from_the_formats(left, right):
    rng = np.random.default_rng(1)
    x, weight = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((2, 3, 32), (32, 7)))
    lhs, lhs_scale = quantize_lhs(x, left, 1)
    rhs, rhs_scale = quantize_rhs(weight, right, 1)
    call = functools.partial(quantized_matmul, rhs_format=right.name, rhs_shape=weight.shape)
    out = jax.jit(lambda *a: call(a[0], a[1], a[2], lhs_scale=a[3]))(lhs, rhs, rhs_scale, lhs_scale)
    # |q(x) q(w) - x w| <= |x - q(x)| |w| + |q(x)| |w - q(w)|, summed over the contracted dimension.
    ex, ew = largest_error(left, lhs_scale)[..., None], largest_error(right, rhs_scale[0])[None]
    bound = ex * jnp.abs(weight).sum(0)[None, None] + (jnp.abs(x) + ex).sum(-1, keepdims=True) * ew[None]
    assert bool((jnp.abs(out - x @ weight) <= bound).all())
    assert out.dtype == jnp.float32


def test_weight_only_products_equal_the_dequantised_weight_and_so_do_gradients():
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.standard_normal((2, 8, 3)), jnp.float32)
    weight = jnp.asarray(rng.standard_normal((8, 3, 4)), jnp.float32)
    for fmt, groups in ((INT8, 1), (INT4, 2), (NF4, 4)):
        kept, scale = quantize_rhs(weight, fmt, 2, groups)
        dense = dequantize_rhs(kept, scale, fmt, weight.shape, 2)

        def ours(x, fmt=fmt, kept=kept, scale=scale):
            return quantized_matmul(x, kept, scale, rhs_format=fmt.name, rhs_shape=(8, 3, 4), num_contracted=2)

        def right(x, dense=dense):
            return jnp.einsum("bij,ijn->bn", x, dense)

        np.testing.assert_allclose(ours(x), right(x), atol=1e-5)
        mine, true = (jax.grad(lambda x, f=f: jnp.sin(f(x)).sum())(x) for f in (ours, right))
        np.testing.assert_allclose(mine, true, atol=1e-5)


def test_what_does_not_fit_is_named():
    weight = jnp.ones((8, 4))
    kept, scale = quantize_rhs(weight, INT4, 1, 2)
    with pytest.raises(KernelError, match="no quantised format 'int3'; did you mean"):
        quantized_matmul(jnp.ones((2, 8)), kept, scale, rhs_format="int3", rhs_shape=(8, 4))
    with pytest.raises(KernelError, match=r"rhs is uint8\[4, 4\], int8 of \(8, 4\) is int8\[8, 4\]"):
        quantized_matmul(jnp.ones((2, 8)), kept, scale, rhs_format="int8", rhs_shape=(8, 4))
    with pytest.raises(KernelError, match="needs rhs of its kind in one group, not int4 in 2"):
        lhs, lhs_scale = quantize_lhs(jnp.ones((2, 8)), INT8, 1)
        quantized_matmul(lhs, kept, scale, rhs_format="int4", rhs_shape=(8, 4), lhs_scale=lhs_scale)
    with pytest.raises(KernelError, match="8 can't be split in 3 equal groups"):
        quantize_rhs(weight, INT4, 1, 3)
