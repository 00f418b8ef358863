"""Conformance of a kernel: it equals the reference where it says it applies, and says why where it doesn't."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel
from kanawa.testing.compare import Agreement, Examples, Sweep, compare_with_reference, examples_for


class KernelConformance:
    """Subclasses return the kernel; it is compared on the operation's own problems and generated ones.

    Outputs and gradients are compared with the reference in fp64. For a kernel of an operation of the author's own,
    `examples` returns the reference, the problems, their features and the operands.
    """

    #: Relative error allowed, by dtype, where the kit's own is too strict; say why beside it.
    tolerances: ClassVar[dict[str, float] | None] = None
    #: Values of features (`Examples.space`) to generate problems from in place of the operation's own: for a kernel
    #: that needs longer lengths, or to spend the sweep on what it is for.
    narrow: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Generated problems that are compared, and that are compared by the test marked `nightly`.
    generated: ClassVar[int] = 12
    generated_nightly: ClassVar[int] = 100
    #: Fewer accepted problems than this among the generated ones fail: a sweep of refusals shows nothing.
    fewest_accepted: ClassVar[int] = 8
    _agreements: ClassVar[tuple[Agreement, ...]]
    _sweep: ClassVar[Sweep]

    def kernel(self) -> Kernel:
        """Returns the kernel."""
        raise AssertionError("implement kernel() in the conformance class")  # noqa: EM101

    def examples(self) -> Examples:
        """Returns what comparing takes: by default the examples that `kanawa[kernel-tools]` has of the operation."""
        return examples_for(self.kernel().operation)

    def problems(self) -> tuple[Any, ...] | None:
        """Returns the problems to compare on; None for the operation's own."""
        return None

    def agreements(self) -> tuple[Agreement, ...]:
        """Returns how the kernel compared on `problems`, computed once a class."""
        cls = type(self)
        # In the class's own namespace: a subclass that inherits the attribute tests another kernel.
        if "_agreements" not in vars(cls):
            cls._agreements = self._compared(self.problems())
        return cls._agreements

    def sweep(self) -> Sweep:
        """Returns the generated problems, the nightly ones included, and what was refused; made once a class."""
        cls = type(self)
        if "_sweep" not in vars(cls):
            space = self.examples().space
            if space is None:
                cls._sweep = Sweep((), ())
            else:
                cls._sweep = space.narrowed(self.narrow).generate(self.kernel(), self.generated_nightly)
        return cls._sweep

    def test_outputs_and_gradients_equal_the_reference(self) -> None:
        compared = [a for a in self.agreements() if not a.refused]
        # A kernel for what the fixed list lacks is still held to the generated problems.
        assert compared or self.sweep().problems, f"{self.kernel().name} refused every problem: " + "; ".join(
            a.refused for a in self.agreements()
        )
        _assert_ok(compared)

    def test_generated_problems_equal_the_reference(self) -> None:
        space = self.examples().space
        if space is None:
            return
        problems = self.sweep().problems
        possible = min(self.fewest_accepted, self.generated)
        reasons = sorted({refusal.reason for refusal in self.sweep().refusals})
        assert len(problems) >= possible, (
            f"{self.kernel().name} accepted {len(problems)} generated problems, fewer than {possible}; narrow the "
            f"features ({', '.join(space.features)}) to values that it takes. It refused: " + "; ".join(reasons[:20])
        )
        _assert_ok(self._compared(problems[: self.generated]))

    @pytest.mark.nightly
    def test_the_whole_sweep_equals_the_reference(self) -> None:
        _assert_ok(self._compared(self.sweep().problems[self.generated :]))

    def test_outputs_have_the_references_shape_and_dtype(self) -> None:
        kernel, examples = self.kernel(), self.examples()
        accepted = [a.problem for a in self.agreements() if not a.refused]
        for problem in (*accepted, *self.sweep().problems[: self.generated]):
            operands = examples.operands(problem, np.random.default_rng(0))
            ours, right = (
                jax.eval_shape(partial(call, one, problem), operands) for one in (kernel, examples.reference)
            )
            described = [[(x.shape, x.dtype.name) for x in jax.tree.leaves(out)] for out in (ours, right)]
            assert described[0] == described[1], f"{problem.describe()}: {described[0]}, reference {described[1]}"

    def test_every_refusal_has_a_reason(self) -> None:
        refusals = [(a.problem, a.refused) for a in self.agreements() if a.refused]
        refusals += [(refusal.problem, refusal.reason) for refusal in self.sweep().refusals]
        for problem, reason in refusals:
            assert len(reason) > 10, f"{problem.describe()}: refused with {reason!r}; name the value and the limit"

    def test_its_name_says_operation_platform_and_kernel(self) -> None:
        kernel = self.kernel()
        parts = kernel.name.split(".")
        assert len(parts) == 3, kernel.name
        assert parts[0] == kernel.operation

    def _compared(self, problems: Iterable[Any] | None) -> tuple[Agreement, ...]:
        return tuple(
            compare_with_reference(self.kernel(), problems, examples=self.examples(), tolerances=self.tolerances)
        )


def _assert_ok(agreements: Iterable[Agreement]) -> None:
    wrong = [agreement.describe() for agreement in agreements if not agreement.ok]
    assert not wrong, "\n".join(wrong)
