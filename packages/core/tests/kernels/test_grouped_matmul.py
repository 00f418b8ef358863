"""Grouped products against a dense one-hot oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels.grouped_matmul import grouped_matmul


def oracle(lhs, rhs, sizes):
    """Every row times every group's matrix, then the right one picked."""
    owner = np.repeat(np.arange(len(sizes) + 1), [*sizes, lhs.shape[0] - sum(sizes)])
    chosen = jax.nn.one_hot(owner, len(sizes), dtype=jnp.float32)
    return jnp.einsum("mg,mk,gkn->mn", chosen, lhs, rhs)


@pytest.mark.parametrize("sizes", [(3, 0, 5), (8, 0, 0), (0, 0, 0), (2, 2, 1)], ids=str)
def test_values_and_gradients_match_the_oracle(sizes, normal):
    lhs, rhs = normal(8, 4), normal(3, 4, 5)

    def values(f, sizes):
        grad = jax.value_and_grad(lambda a, b: jnp.sum(jnp.sin(f(a, b, sizes))), argnums=(0, 1))
        return jax.jit(lambda a, b: (f(a, b, sizes), grad(a, b)))(lhs, rhs)

    found = values(grouped_matmul, jnp.array(sizes, jnp.int32))
    for mine, right in zip(*map(jax.tree.leaves, (found, values(oracle, sizes))), strict=True):
        np.testing.assert_allclose(mine, right, atol=2e-6)


def test_rows_are_accumulated_in_fp32(normal):
    # 256 ones and a small number: a bfloat16 accumulator would lose the small ones.
    lhs = jnp.full((1, 512), 1.0, jnp.bfloat16)
    rhs = jnp.concatenate([jnp.full((1, 1, 1), 256.0), jnp.full((1, 511, 1), 0.5)], axis=1)
    found = grouped_matmul(lhs, rhs.astype(jnp.bfloat16), jnp.array([1], jnp.int32))
    assert found.dtype == jnp.bfloat16
    assert float(found[0, 0]) == pytest.approx(511.5, rel=4e-3)


def test_wrong_shapes_and_dtypes_are_named():
    lhs, rhs = jnp.ones((4, 2)), jnp.ones((3, 2, 5))
    with pytest.raises(KernelError, match=r"group_sizes \(2,\); expected \[M, K\], \[G, K, N\] and \[G\]"):
        grouped_matmul(lhs, rhs, jnp.array([1, 1]))
    with pytest.raises(KernelError, match="it counts rows, and counts are integers"):
        grouped_matmul(lhs, rhs, jnp.ones(3))
