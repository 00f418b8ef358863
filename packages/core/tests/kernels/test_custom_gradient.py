"""The one custom_vjp: a kernel's own backward, for every operand, and remat by name."""

import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels import Kernel, Problem, Verdict
from kanawa.kernels.custom_gradient import call


class Scaled(Kernel):
    """y = x * sum(ids) + b, with a backward that is marked by a factor of ten."""

    name = "scaled.any.test"
    operation = "scaled"
    found = ("x",)

    def supports(self, problem, device):
        return Verdict(True)

    def forward(self, problem, operands):
        factor = jnp.sum(operands["ids"]).astype(operands["x"].dtype)
        return operands["x"] * factor + operands["b"], factor

    def backward(self, problem, operands, out, residuals, cotangents):
        full = {"x": 10 * residuals * cotangents, "y": cotangents}
        return {name: full[name] for name in self.found}


@dataclasses.dataclass(frozen=True)
class Three(Problem):
    """Nothing is static about it."""

    def describe(self):
        return "three numbers"

    def result(self, operands):
        return operands["x"]


PROBLEM = Three()
X, IDS = jnp.arange(3.0), jnp.array([1, 2])


def loss(kernel):
    return lambda x, b: jnp.sum(call(kernel, PROBLEM, {"x": x, "ids": IDS, "b": b}))


def test_the_kernels_backward_is_used_and_what_it_leaves_out_is_zero():
    dx, db = jax.jit(jax.grad(loss(Scaled()), argnums=(0, 1)))(X, jnp.ones(3))
    np.testing.assert_array_equal(dx, [30, 30, 30])
    np.testing.assert_array_equal(db, [0, 0, 0])


def test_cotangents_take_the_operands_dtype():
    grad = jax.grad(loss(Scaled()))(X.astype(jnp.bfloat16), jnp.ones(3, jnp.bfloat16))
    assert grad.dtype == jnp.bfloat16


def test_autodiff_kernels_are_differentiated_by_jax():
    class Plain(Scaled):
        autodiff = True

    dx, db = jax.grad(loss(Plain()), argnums=(0, 1))(X, jnp.ones(3))
    np.testing.assert_array_equal(dx, [3, 3, 3])
    np.testing.assert_array_equal(db, [1, 1, 1])


def test_cotangents_of_unknown_operands_are_refused():
    class Wrong(Scaled):
        found = ("y",)

    with pytest.raises(KernelError, match="cotangents of \\['y'\\], which are not operands"):
        jax.grad(loss(Wrong()))(X, X)


def test_a_remat_policy_can_save_the_outputs_by_name():
    def products(policy):
        def f(x, b):
            return jnp.sum(jnp.sin(call(Scaled(), PROBLEM, {"x": x, "ids": IDS, "b": b})))

        jaxpr = jax.make_jaxpr(jax.grad(jax.checkpoint(f, policy=policy)))(X, X)
        return str(jaxpr).count("reduce_sum")

    names = ("scaled_out", "scaled_residuals")
    saved = products(jax.checkpoint_policies.save_only_these_names(*names))
    assert saved < products(jax.checkpoint_policies.nothing_saveable)


class Counted(Scaled):
    """Counts how often its forward is traced."""

    name = "scaled.any.counted"
    forwards = 0

    def forward(self, problem, operands):
        Counted.forwards += 1
        return super().forward(problem, operands)


class Scaling(kn.Module):
    """Calls the kernel as a layer does."""

    class Config(kn.Module.Config):
        pass

    def forward(self, x):
        return call(Counted(), PROBLEM, {"x": x, "ids": IDS, "b": x})


@pytest.mark.parametrize("scanned", [False, True])
def test_a_training_step_traces_a_kernels_forward_once(scanned):
    module = Scaling.Config().build()

    def layer(y, _):
        return kn.functional(module)({}, {}, y, train=True)[0], None

    def step(x):
        return jnp.sum(jax.lax.scan(layer, x, None, length=2)[0] if scanned else layer(x, None)[0])

    Counted.forwards = 0
    grad = jax.jit(jax.grad(step))(X)
    assert Counted.forwards == 1
    np.testing.assert_array_equal(grad, [900, 900, 900] if scanned else [30, 30, 30])
