"""RMSNorm as an operation: bits as they were, kernels where there are any, and what can't be asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import Verdict
from kanawa.kernels.rms_norm import ReferenceRMSNorm, RMSNormProblem, rms_norm
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance


class TestReference(KernelConformance):
    # Any kernel is held to the same problems; of the reference, fp32 against fp64 is all there is to see.
    generated = 4
    fewest_accepted = 4

    def kernel(self):
        return ReferenceRMSNorm()


class WithoutDifference(ReferenceRMSNorm):
    """Its gradient of x is the first of two terms alone."""

    autodiff = False

    def backward(self, problem, operands, out, residuals, cotangents):
        inverse = jax.lax.rsqrt(jnp.mean(operands["x"] ** 2, axis=-1, keepdims=True) + problem.eps)
        return {"x": cotangents * operands["scale"][None] * inverse}


@pytest.mark.parametrize("seed", range(5))
def test_a_norm_of_one_number_is_held_to_what_fp32_can_tell(seed):
    problems = [RMSNormProblem(rows=rows, width=1, dtype="float32", eps=eps) for rows in (1, 7) for eps in (1e-6, 0.1)]
    for agreement in compare_with_reference(ReferenceRMSNorm(), problems, seed=seed):
        assert agreement.ok, agreement.describe()
    for agreement in compare_with_reference(WithoutDifference(), problems, seed=seed):
        assert agreement.errors["dx"] > 1e-3, agreement.describe()


@pytest.mark.parametrize("shape", [(3, 5, 16), (4, 16), (16,), (2, 3, 4, 16), (2, 1, 3, 4, 16)])
def test_it_is_the_formula_bit_for_bit(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
    scale = jnp.asarray(rng.standard_normal(16), jnp.float32)
    x32 = x.astype(jnp.float32)
    expected = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-5)
    expected = (expected * scale.reshape((1,) * (len(shape) - 1) + (16,))).astype(jnp.bfloat16)
    assert np.array_equal(rms_norm(x, scale, eps=1e-5), expected)


def test_a_lone_reference_is_no_choice_to_record():
    text = str(jax.make_jaxpr(lambda x: rms_norm(x, jnp.ones(8), eps=1e-6))(jnp.ones((2, 8))))
    assert "custom_vjp" not in text


def test_a_scale_of_another_width():
    with pytest.raises(KernelError, match=r"x \(2, 8\), scale \(4,\); expected \[..., E\] and \[E\]"):
        rms_norm(jnp.ones((2, 8)), jnp.ones(4), eps=1e-6)


def test_integers_and_an_epsilon_that_is_none():
    with pytest.raises(KernelError, match="rms_norm: x is int32; it must be floating-point; eps -1 must be at least 0"):
        rms_norm(jnp.ones((2, 8), jnp.int32), jnp.ones(8), eps=-1.0)
    with pytest.raises(KernelError, match="rms_norm: eps nan must be at least 0"):
        rms_norm(jnp.ones((2, 8)), jnp.ones(8), eps=float("nan"))


class Few(ReferenceRMSNorm):
    """Takes what a shard holds, and no more."""

    name = "rms_norm.cpu.few"
    local = True

    def supports(self, problem, device):
        return Verdict(problem.rows <= 8, f"{problem.rows} rows are over 8")


def test_a_pinned_kernel_is_asked_about_a_shard(install):
    install(a={Few.name: f"{__name__}:Few"})
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    plan = ExecutionPlan(
        activation_rules=(("batch", ("data",)),), kernels=KernelPolicy(pins=(("rms_norm", Few.name),)), platform="cpu"
    )
    x = jnp.arange(32.0 * 8).reshape(32, 8)
    with jax.set_mesh(mesh), use_plan(plan):
        ours = jax.jit(lambda x: rms_norm(x, jnp.ones(8), eps=1e-6))(x)
    np.testing.assert_allclose(ours, x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6), rtol=1e-6)
