"""A traced program as equations: a matmul counts the same, whichever kernel computes it."""

import jax
import jax.numpy as jnp
import pytest
from kanawa.kernels.matmul.primitive import call_kernel
from kanawa.kernels.matmul.problem import MatmulProblem, ReferenceMatmul
from kanawa_parallel.plan.quick.equations import flat_scope


@pytest.mark.parametrize("x_layout", ["rows_first", "inner_first"])
@pytest.mark.parametrize("weight_layout", ["inner_first", "outputs_first"])
def test_a_matmul_by_a_kernel_is_a_dot(x_layout, weight_layout):
    problem = MatmulProblem(
        rows=6, inner=8, outputs=10, x_dtype="float32", weight_dtype="float32", sum_dtype="float32", dtype="float32",
        x_layout=x_layout, weight_layout=weight_layout,
    )  # fmt: skip
    x, weight = jnp.ones(problem.x_shape), jnp.ones(problem.weight_shape)
    jaxpr = jax.make_jaxpr(lambda x, w: call_kernel(ReferenceMatmul(), problem, x, w))(x, weight)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["kanawa_matmul"]
    scope = flat_scope(jaxpr)
    assert [equation.name for equation in scope.equations] == ["dot_general"]
    (left,), (right,) = scope.equations[0].params["dimension_numbers"][0]
    assert problem.x_shape[left] == problem.weight_shape[right] == 8
