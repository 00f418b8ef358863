"""What enters a projection is written to memory where a plan asks for it, in training only; nothing else changes."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.arrays.materialize import computed_once, row_major
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.contracts import Weighted
from kanawa.plugins import ProgramTraits


class Projection(Weighted):
    """x @ w."""

    def setup(self):
        super().setup()
        self.add_weight("weight", (3, 4), axes=("embed", "mlp"))

    def forward(self, x):
        return self.matmul(x, "weight")


X = jnp.arange(6.0).reshape(2, 3)


def loss(params, x):
    return jnp.sin(kn.functional(Projection.Config().build(name="p"))(params, {}, jnp.exp(x))[0]).sum()


def test_gradients_are_the_same_and_barriers_are_there_for_training_only():
    params = {"weight": jnp.ones((3, 4)) / 7}
    plain = jax.grad(loss, argnums=(0, 1))(params, X)
    with use_plan(ExecutionPlan(traits=ProgramTraits(materialized_inputs=True))):
        gradient = jax.grad(loss, argnums=(0, 1))
        jax.tree.map(np.testing.assert_array_equal, gradient(params, X), plain)
        assert str(jax.make_jaxpr(gradient)(params, X)).count("optimization_barrier") == 3
        assert "optimization_barrier" not in str(jax.make_jaxpr(loss)(params, X))
    assert "optimization_barrier" not in str(jax.make_jaxpr(gradient)(params, X))


def test_a_row_major_array_is_constrained_in_both_directions_of_training_only():
    def loss(x):
        return jnp.sum(jnp.sin(row_major(jnp.exp(x))))

    assert "layout_constraint" not in str(jax.make_jaxpr(jax.grad(loss))(X))
    with use_plan(ExecutionPlan(traits=ProgramTraits(row_major_stream=True))):
        np.testing.assert_allclose(jax.grad(loss)(X), jnp.cos(jnp.exp(X)) * jnp.exp(X), rtol=1e-6)
        assert str(jax.make_jaxpr(jax.grad(loss))(X)).count("layout_constraint") == 2
        assert "layout_constraint" not in str(jax.make_jaxpr(loss)(X))
        # As a pipeline's stages run it.
        np.testing.assert_array_equal(jax.vmap(jax.grad(loss))(X[None]), jax.grad(loss)(X)[None])


def test_shared_values_are_computed_in_a_branch_where_the_compiler_would_repeat_them():
    def waves(x):
        return computed_once(jnp.sin, x, lambda x: x)

    assert "cond" not in str(jax.make_jaxpr(waves)(X))
    with use_plan(ExecutionPlan(traits=ProgramTraits(recomputes_shared=True))):
        assert "cond" in str(jax.make_jaxpr(waves)(X))
        np.testing.assert_array_equal(jax.jit(waves)(X), jax.jit(jnp.sin)(X))
