"""A kernel of an operation that core has never heard of goes through the same kit."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.errors import KernelError
from kanawa.kernels import Kernel, Problem, Verdict
from kanawa.testing.compare import Examples
from kanawa.testing.kernel import KernelConformance


@dataclasses.dataclass(frozen=True)
class RunningSum(Problem):
    length: int
    dtype: str = "float32"

    def describe(self):
        return f"running sum of {self.length}"

    def result(self, operands):
        return operands["x"]


class Reference(Kernel):
    name = "running_sum.any.reference"
    operation = "running_sum"
    platforms = ()
    autodiff = True

    def supports(self, problem, device):
        return Verdict(True, "")

    def forward(self, problem, operands):
        return jnp.cumsum(operands["x"]), None


class ByMatmul(Reference):
    name = "running_sum.any.matmul"

    def forward(self, problem, operands):
        return jnp.tri(problem.length) @ operands["x"], None


EXAMPLES = Examples(
    reference=Reference(),
    problems=(RunningSum(4), RunningSum(7)),
    operands=lambda problem, rng: {"x": rng.standard_normal(problem.length).astype(np.float32)},
)


class TestByMatmul(KernelConformance):
    def kernel(self):
        return ByMatmul()

    def examples(self):
        return EXAMPLES


def test_without_examples_the_error_says_where_they_go():
    class Silent(KernelConformance):
        def kernel(self):
            return ByMatmul()

    with pytest.raises(KernelError, match=r"no examples for operation 'running_sum'.*conformance class's `examples`"):
        Silent().test_outputs_and_gradients_equal_the_reference()
