"""Known-bad kernels, each with the check of the kit that has to fail for it."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from kanawa.errors import KernelError
from kanawa.kernels import Kernel, MaskSpec, Verdict
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.grouped_matmul import ReferenceGroupedMatmul
from kanawa.testing.kernel import KernelConformance
from kanawa_kernel_tools.examples.attention import SPACE
from kanawa_kernel_tools.examples.grouped_matmul import BASE


def kit_for(kernel, **methods):
    """Returns an instance of the kit for a kernel class."""
    given = {"kernel": kernel, **methods}
    return type("Kit", (KernelConformance,), {name: (lambda self, v=value: v()) for name, value in given.items()})()


def caught(kit, test):
    """Returns what the check says of the kernel; fails where it passes it."""
    with pytest.raises((AssertionError, KernelError)) as error:
        getattr(kit, test)()
    return str(error.value)


class Grouped(Kernel):
    """The reference under another name; its subclasses get one thing wrong."""

    name: ClassVar[str] = "grouped_matmul.cpu.bad"
    operation: ClassVar[str] = "grouped_matmul"
    autodiff: ClassVar[bool] = True

    def supports(self, problem, device):
        return Verdict(ok=True)

    def forward(self, problem, operands):
        return ReferenceGroupedMatmul().forward(problem, operands)


class WrongForOneOperand(Grouped):
    def forward(self, problem, operands):
        rhs = operands["rhs"]
        halved = rhs + 0.5 * (jax.lax.stop_gradient(rhs) - rhs)
        return super().forward(problem, {**operands, "rhs": halved})


class FillsTheRest(Grouped):
    """Rows past the last group should be zero."""

    def forward(self, problem, operands):
        sizes = operands["group_sizes"]
        left = problem.rows - sizes.sum()
        return super().forward(problem, {**operands, "group_sizes": sizes.at[-1].add(left)})


class WidensOutput(Grouped):
    def forward(self, problem, operands):
        out, kept = super().forward(problem, operands)
        return out.astype(jnp.float32), kept


class RefusesInSilence(Grouped):
    def supports(self, problem, device):
        return Verdict(ok=problem.groups == 1, reason="no")


@pytest.mark.parametrize(
    ("kernel", "test", "said"),
    [
        (WrongForOneOperand, "test_outputs_and_gradients_equal_the_reference", "drhs 0.5"),
        (FillsTheRest, "test_outputs_and_gradients_equal_the_reference", "DISAGREES"),
        (WidensOutput, "test_outputs_have_the_references_shape_and_dtype", "float32"),
        (RefusesInSilence, "test_every_refusal_has_a_reason", ""),
    ],
)
def test_a_bad_kernel_is_caught(kernel, test, said):
    small = dataclasses.replace(BASE, rows=16, inner=8, columns=8)
    half = dataclasses.replace(small, dtype="bfloat16", rhs_dtype="bfloat16")
    sweep = (small, dataclasses.replace(small, groups=1), half)
    assert said in caught(kit_for(kernel, problems=lambda: sweep), test)


class IgnoresSinks(ReferenceAttention):
    """Right for everything but one feature; its subclasses are wrong for another."""

    def broken(self, problem):
        return {"has_sinks": False}

    def apply(self, problem, operands):
        return super().apply(dataclasses.replace(problem, **self.broken(problem)), operands)


class ForgetsTheScaleOfOneWidth(IgnoresSinks):
    def broken(self, problem):
        return {"scale": 1.0} if problem.head_dim != problem.v_head_dim else {}


class RaisesForPrefixes(IgnoresSinks):
    def broken(self, problem):
        if problem.mask.prefix:
            raise NotImplementedError("prefix")
        return {}


class SeesBehindTheLastKey(IgnoresSinks):
    """The cache's room behind the last key, for rows of which it has pages."""

    def broken(self, problem):
        return {"has_q_positions": problem.has_q_positions, "mask": MaskSpec()} if problem.paged else {}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (IgnoresSinks, "sinks"),
        pytest.param(ForgetsTheScaleOfOneWidth, "kv[2,16,2,4]", marks=pytest.mark.nightly),
        (RaisesForPrefixes, "accepted, then FAILED: NotImplementedError: prefix"),
        (SeesBehindTheLastKey, "pages(8)"),
    ],
)
def test_a_kernel_that_is_wrong_for_one_feature_is_caught_by_the_generated_sweep(kernel, said):
    kit = kit_for(kernel)
    type(kit).narrow = {
        **{name: values[:1] for name, values in SPACE.features.items()},
        **{"q_length": (16,), "head_dims": ((8, 8), (8, 4)), "sinks": (False, True), "prefix": (False, True)},
        **{"mode": ("train", "prefill"), "kv_lengths": (False, True), "page_size": (None, 8)},
    }
    type(kit).generated, type(kit).fewest_accepted = 6, 6
    lines = caught(kit, "test_generated_problems_equal_the_reference").splitlines()
    assert lines and all(said in line for line in lines), lines


def test_a_sweep_of_refusals_is_no_sweep():
    kit = kit_for(RefusesInSilence)
    type(kit).narrow = {"groups": (2, 3)}
    said = caught(kit, "test_generated_problems_equal_the_reference")
    assert "accepted 0 generated problems, fewer than 8; narrow the features (rows, inner" in said
