"""Products beside XLA's: equal to JAX's in value and all derivatives, used where a plan says, refused by shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays import onednn, products

SIZES = (96, 64, 80)
WAYS = [(False, False), (True, False), (False, True), (True, True)]
CALLS = {"native": "kanawa_product", "onednn": "__onednn$matmul"}


@pytest.fixture(params=CALLS)
def by(request, monkeypatch):
    """Each that computes them in turn; gives what a program calls."""
    if not {"native": products.has_native, "onednn": onednn.available}[request.param]():
        pytest.skip(f"no {request.param} products for this processor")
    monkeypatch.setattr(products, "has_native", lambda: request.param == "native")
    # What JAX has traced by the other one isn't traced again.
    jax.clear_caches()
    yield CALLS[request.param]
    jax.clear_caches()


def operands(transpose_a, transpose_b, dtype="float32", leading=()):
    rows, inner, columns = SIZES
    a, b = ((inner, rows) if transpose_a else (rows, inner)), ((columns, inner) if transpose_b else (inner, columns))
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal((*leading, *shape)), dtype) for shape in (a, b))


def plainly(a, b, transpose_a, transpose_b):
    turned = lambda x, turn: x.swapaxes(-1, -2) if turn else x  # noqa: E731
    return jnp.matmul(turned(a, transpose_a), turned(b, transpose_b), precision="highest")


def pair(transpose_a, transpose_b):
    """Returns a scalar function of the product beside XLA's, and the same by JAX."""

    def ours(a, b):
        return jnp.sum(jnp.sin(0.3 * products.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)))

    return ours, lambda a, b: jnp.sum(jnp.sin(0.3 * plainly(a, b, transpose_a, transpose_b)))


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize(("transpose_a", "transpose_b"), WAYS)
def test_values_and_derivatives_of_every_order_are_jaxs(transpose_a, transpose_b):
    ours, right = pair(transpose_a, transpose_b)
    a, b = operands(transpose_a, transpose_b)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4)  # noqa: E731
    jax.tree.map(close, jax.jit(jax.grad(ours, (0, 1)))(a, b), jax.jit(jax.grad(right, (0, 1)))(a, b))
    jax.tree.map(close, jax.jvp(ours, (a, b), (b.sum() * a, b)), jax.jvp(right, (a, b), (b.sum() * a, b)))
    second = lambda f: jax.jit(jax.hessian(lambda scale: f(scale * a, b)))(0.2)  # noqa: E731
    np.testing.assert_allclose(second(ours), second(right), rtol=1e-3)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_mapped_operands(mapped):
    a, b = operands(False, True, leading=(3,))
    a, b = (x[0] if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in zip((a, b), mapped, strict=True))
    ours = jax.vmap(lambda a, b: products.matmul(a, b, transpose_b=True), in_axes=mapped)(a, b)
    right = jax.vmap(lambda a, b: plainly(a, b, False, True), in_axes=mapped)(a, b)
    np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_weight_is_not_copied_for_every_example(transpose_b):
    a, b = operands(False, transpose_b)
    a = jnp.stack([a, 2 * a, 3 * a])
    mapped = jax.vmap(lambda a: products.matmul(a, b, transpose_b=transpose_b), in_axes=1)
    np.testing.assert_allclose(mapped(a.swapaxes(0, 1)), plainly(a, b, False, transpose_b), rtol=1e-4, atol=1e-4)
    shapes = {each.aval.shape for eqn in jax.make_jaxpr(mapped)(a.swapaxes(0, 1)).eqns for each in eqn.outvars}
    assert (3, *b.shape) not in shapes


def test_shapes_that_have_no_product_are_named():
    a, b = jnp.zeros((4, 3)), jnp.zeros((4, 5))
    with pytest.raises(ValueError, match=r"no product \(4, 3\) @ \(4, 5\): leading dimensions and the contracted one"):
        products.matmul(a, b)
    with pytest.raises(
        ValueError, match="no product of float32 and bfloat16 in float32: both float32, or both bfloat16"
    ):
        products.matmul(a.T, b.astype(jnp.bfloat16))
    with pytest.raises(ValueError, match="no product of int32 and int32"):
        products.matmul(a.astype(jnp.int32), b.astype(jnp.int32))
    assert jax.eval_shape(lambda a, b: products.matmul(a, b, transpose_a=True), a, b).shape == (3, 5)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_empty_has_a_product_of_zeros(dtype):
    for rows, inner, columns in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
        out = products.matmul(jnp.ones((rows, inner), dtype), jnp.ones((inner, columns), dtype))
        assert out.dtype == dtype and np.array_equal(out, np.zeros((rows, columns)))


@pytest.mark.usefixtures("by")
def test_a_wider_result_has_gradients_in_its_operands_dtype():
    a, b = operands(False, True, "bfloat16")
    ours = jax.grad(lambda a, b: jnp.sum(products.matmul(a, b, transpose_b=True, dtype=jnp.float32) ** 2), (0, 1))(a, b)
    right = jax.grad(lambda a, b: jnp.sum(plainly(a, b, False, True) ** 2), (0, 1))(
        *(x.astype(jnp.float32) for x in (a, b))
    )
    for one, other in zip(ours, right, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other, rtol=2e-2, atol=2)
