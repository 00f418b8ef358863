"""The comparison itself must notice wrong values, wrong gradients and NaN, and report refusals."""

import dataclasses

import jax.numpy as jnp
import pytest
from kanawa.errors import KernelError
from kanawa.kernels import Verdict
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.grouped_matmul import ReferenceGroupedMatmul
from kanawa.testing.compare import compare_with_reference, examples_for
from kanawa_kernel_tools.examples.attention import BASE, EXAMPLES
from kanawa_kernel_tools.examples.grouped_matmul import EXAMPLES as GROUPED

TINY = dataclasses.replace(BASE, batch=1, q_length=8, kv_length=8, head_dim=4, v_head_dim=4)


class Broken(ReferenceAttention):
    """Wrong in one way."""

    autodiff = False
    error = ""

    def forward(self, problem, operands):
        out, residuals = super().forward(problem, operands)
        factor = {"value": 1.001, "nan": jnp.nan}.get(self.error, 1.0)
        return out * factor, residuals

    def backward(self, problem, operands, out, residuals, cotangents):
        grads = super().backward(problem, operands, out, residuals, cotangents)
        if self.error == "gradient":
            grads["k"] = grads["k"] * 1.001
        return grads


@pytest.mark.parametrize(("error", "blamed"), [("", set()), ("value", {"out[0]"}), ("gradient", {"dk"}), ("nan", None)])
def test_errors_are_found_where_they_are(error, blamed):
    kernel = Broken()
    kernel.error = error
    (agreement,) = compare_with_reference(kernel, [TINY])
    assert agreement.ok == (error == "")
    if blamed is not None:
        large = {name for name, size in agreement.errors.items() if size > agreement.tolerance}
        assert blamed <= large and ("dv" not in large or error == "value")
    assert ("DISAGREES" in agreement.describe()) == (error != "")


def test_refusals_are_reported_not_compared():
    class Picky(ReferenceAttention):
        def supports(self, problem, device):
            return Verdict(False, "not today")

    (agreement,) = compare_with_reference(Picky(), [TINY])
    assert agreement.ok and not agreement.errors
    assert agreement.describe().endswith("refused: not today")


def test_every_example_has_operands_that_the_reference_takes():
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    for problem in EXAMPLES.problems:
        operands = EXAMPLES.operands(problem, rng)
        out = jax.eval_shape(lambda o, p=problem: EXAMPLES.reference.apply(p, o), operands)
        assert out.shape == (problem.batch, problem.q_length, problem.num_heads, problem.v_head_dim)
    for problem in GROUPED.problems[:2]:
        (agreement,) = compare_with_reference(ReferenceGroupedMatmul(), [problem])
        assert agreement.ok, agreement.describe()


def test_unknown_operations_need_examples_of_their_own():
    with pytest.raises(KernelError, match="no examples for operation 'attentoin'; did you mean"):
        examples_for("attentoin")
