"""Conformance of a kernel: it equals the reference where it says it applies, and says why where it doesn't."""

from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np

from kanawa.kernels.compare import Agreement, Examples, compare_with_reference, examples_for
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel


class KernelConformance:
    """An author gives the kernel; the sweep is the operation's own, unless `problems` names others.

    For a kernel of an operation of the author's own, `examples` gives the reference, the sweep and the operands.
    """

    #: Relative error allowed, by dtype, where the kit's own is too strict; say why beside it.
    tolerances: ClassVar[dict[str, float] | None] = None
    _agreements: ClassVar[tuple[Agreement, ...]]

    def kernel(self) -> Kernel:
        """Returns the kernel."""
        raise AssertionError("implement kernel() in the conformance class")  # noqa: EM101

    def examples(self) -> Examples:
        """Returns what comparing takes: core's for one of its operations."""
        return examples_for(self.kernel().operation)

    def problems(self) -> tuple[Any, ...] | None:
        """Returns the problems to compare on; None for the operation's sweep."""
        return None

    def agreements(self) -> tuple[Agreement, ...]:
        """Returns how the kernel compared, computed once a class."""
        cls = type(self)
        # In the class's own namespace: a subclass that inherits the attribute tests another kernel.
        if "_agreements" not in vars(cls):
            compared = compare_with_reference(
                self.kernel(), self.problems(), examples=self.examples(), tolerances=self.tolerances
            )
            cls._agreements = tuple(compared)
        return cls._agreements

    def test_outputs_and_gradients_equal_the_reference(self) -> None:
        compared = [a for a in self.agreements() if not a.refused]
        assert compared, f"{self.kernel().name} refused every problem: " + "; ".join(
            a.refused for a in self.agreements()
        )
        wrong = [agreement.describe() for agreement in compared if not agreement.ok]
        assert not wrong, "\n".join(wrong)

    def test_outputs_have_the_references_shape_and_dtype(self) -> None:
        kernel, examples = self.kernel(), self.examples()
        for agreement in self.agreements():
            if not agreement.refused:
                problem = agreement.problem
                operands = examples.operands(problem, np.random.default_rng(0))
                ours, right = (
                    jax.eval_shape(partial(call, one, problem), operands) for one in (kernel, examples.reference)
                )
                described = [[(x.shape, x.dtype.name) for x in jax.tree.leaves(out)] for out in (ours, right)]
                assert described[0] == described[1], f"{problem.describe()}: {described[0]}, reference {described[1]}"

    def test_every_refusal_has_a_reason(self) -> None:
        for agreement in self.agreements():
            assert agreement.refused == "" or len(agreement.refused) > 10, agreement.problem

    def test_its_name_says_operation_platform_and_kernel(self) -> None:
        kernel = self.kernel()
        parts = kernel.name.split(".")
        assert len(parts) == 3, kernel.name
        assert parts[0] == kernel.operation
