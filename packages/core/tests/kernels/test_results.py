"""What a kernel returns is held to the problem's result when it is traced, for every operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel
from kanawa.kernels.token_exchange import PaddedTokenExchange, TokenExchangeProblem
from kanawa.kernels.verdict import SUPPORTED
from kanawa.testing.compare import examples_for, operations_with_examples

HERE = __name__
EXCHANGE = TokenExchangeProblem(rows=4, width=2, dtype="float32", output_rows=6, shards=1)
OPERATIONS = (
    "attention", "diagonal_recurrence", "grouped_matmul", "linear_recurrence", "matmul", "quantized_matmul", "rms_norm",
    "softmax_cross_entropy", "token_exchange",
)  # fmt: skip


def drawn(operation):
    """Returns a reference, and its problems with operands."""
    if operation == "token_exchange":
        return PaddedTokenExchange(), [(EXCHANGE, {"rows": jnp.ones((4, 2)), "send_sizes": jnp.array([3])})]
    examples = examples_for(operation)
    rng = np.random.default_rng(0)
    return examples.reference, [(problem, examples.operands(problem, rng)) for problem in examples.problems]


class Off(Kernel):
    """Another kernel, whose first output is changed."""

    name = "any.any.off"

    def __init__(self, inner, change, autodiff):
        self.inner, self.change, self.autodiff = inner, change, autodiff
        self.operation = inner.operation

    def supports(self, problem, device):
        return SUPPORTED

    def forward(self, problem, operands):
        first, *rest = jax.tree.leaves(self.inner.forward(problem, operands)[0])
        return (self.change(first), *rest), None


def test_every_operation_is_here():
    assert {*operations_with_examples(), "token_exchange"} == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_problems_result_is_what_the_reference_returns(operation):
    reference, cases = drawn(operation)
    for problem, operands in cases:
        found = jax.tree.leaves(jax.eval_shape(lambda o, p=problem: reference.apply(p, o), operands))
        expected = jax.tree.leaves(problem.result(operands))
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected], problem


@pytest.mark.parametrize("autodiff", [False, True])
@pytest.mark.parametrize("change", [lambda x: x.astype(jnp.float16), lambda x: x[None]], ids=["dtype", "shape"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_another_dtype_or_shape_names_the_kernel_before_anything_runs(operation, change, autodiff):
    reference, ((problem, operands), *_) = drawn(operation)
    kernel = Off(reference, change, autodiff)
    with pytest.raises(KernelError, match=r"any\.any\.off returned .*; expected .*Its author has to mend it"):
        jax.eval_shape(lambda o: call(kernel, problem, o), operands)


class Halves(ReferenceAttention):
    """Attention whose output is rounded to 16 bits."""

    name = "attention.any.halves"
    priority = 1
    autodiff = False

    def apply(self, problem, operands):
        return super().apply(problem, operands).astype(jnp.float16)


class Cuts(ReferenceAttention):
    """Attention whose gradient of q lacks rows."""

    name = "attention.any.cuts"
    priority = 1
    autodiff = False

    def backward(self, problem, operands, out, residuals, cotangents):
        return {"q": super().backward(problem, operands, out, residuals, cotangents)["q"][:1]}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (Halves, r"attention.any.halves returned float16\[2, 3, 1, 4\] .*; expected float32\[2, 3, 1, 4\]"),
        (Cuts, r"backward of attention.any.cuts returned float32\[1, 3, 1, 4\] as the cotangent of q, which is"),
    ],
)
def test_a_model_never_trains_on_it(install, kernel, said):
    install(stranger={kernel.name: f"{HERE}:{kernel.__name__}"})
    x = jnp.ones((2, 3, 1, 4))
    with pytest.raises(KernelError, match=said):
        jax.eval_shape(jax.grad(lambda x: jnp.sum(attention(x, x, x))), x)
    jax.clear_caches()
