"""Quantised products on GPUs against core's reference: XLA's own, and ours in Pallas's interpreter."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import pytest
from kanawa.kernels.operation import Kernel, Tuning
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_gpu.device import A100, B200, H100
from kanawa_backends_gpu.kernels.quantized_matmul.weights import QuantizedWeightMatmul
from kanawa_backends_gpu.kernels.quantized_matmul.xla import XlaQuantizedMatmul
from kanawa_kernel_tools.examples.quantized_matmul import BASE, EXAMPLES


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Shapes that only rank promotion fits together are errors, as wherever a user's tests are strict."""
    with jax.numpy_rank_promotion("raise"):
        yield


class Weights(QuantizedWeightMatmul):
    """The same kernel without a GPU."""

    interpret: ClassVar[bool] = True


class FewPrograms(Weights):
    """With one program for all of a column's bytes."""

    tuning: Tuning = (("programs", 1),)


XLA, OURS = XlaQuantizedMatmul(), Weights()
HALF: dict[str, Any] = {"lhs_format": "bfloat16", "dtype": "bfloat16"}
FULL: dict[str, Any] = {"lhs_format": "float32", "dtype": "float32"}
PROBLEMS = {
    "int4": {**HALF, "rhs_format": "int4", "groups": 4},
    "int4, exact": {**FULL, "rhs_format": "int4", "rhs_shape": (256, 48), "lhs_shape": (5, 256), "groups": 2},
    "nf4, exact": {**FULL, "rhs_format": "nf4", "groups": 2},
    "nf4, one scale a column": {**HALF, "rhs_format": "nf4", "lhs_shape": (1, 128)},
    "int8": {**HALF, "rhs_format": "int8", "groups": 2, "lhs_shape": (70, 128)},
    "float8": {**FULL, "rhs_format": "float8_e4m3fn", "groups": 8},
    "two contracted dimensions": {
        **FULL, "rhs_format": "int4", "lhs_shape": (4, 8, 16), "rhs_shape": (8, 16, 32), "num_contracted": 2,
        "groups": 2,
    },
}  # fmt: skip


class TestWeightsConform(KernelConformance):
    generated = 10

    def kernel(self) -> Kernel:
        return OURS


class TestXlaConforms(KernelConformance):
    generated = 10

    def kernel(self) -> Kernel:
        return XLA


@pytest.mark.parametrize("case", PROBLEMS)
def test_weights_in_groups_equal_the_reference(case):
    problem = dataclasses.replace(BASE, **PROBLEMS[case])
    (agreement,) = compare_with_reference(OURS, [problem], tolerances={"float32": 1e-5})
    assert agreement.refused == ""
    assert agreement.ok, agreement.describe()
    # The gradient of lhs too: compared where the problem is differentiable, which all of these are.
    assert "dlhs" in agreement.errors


def test_one_program_for_a_column_equals_the_reference():
    problem = dataclasses.replace(BASE, **PROBLEMS["int4, exact"])
    (agreement,) = compare_with_reference(FewPrograms(), [problem], tolerances={"float32": 1e-5})
    assert agreement.ok, agreement.describe()


@pytest.mark.parametrize("device", [H100, B200], ids=["h100", "b200"])
def test_every_problem_of_cores_sweep_has_a_kernel(device):
    for problem in EXAMPLES.problems:
        verdicts = [kernel.supports(problem, device) for kernel in (XLA, OURS)]
        assert any(verdicts), f"{problem.describe()}: {[verdict.reason for verdict in verdicts]}"


REFUSALS = {
    "int4: XLA would unpack": (XLA, {**HALF, "rhs_format": "int4"}, None),
    "4 groups: XLA would scale": (XLA, {**HALF, "groups": 4}, None),
    "widths [40] aren't multiples of 16": (XLA, {"rhs_shape": (128, 40)}, None),
    "a100 multiplies no float8_e4m3fn": (XLA, {"lhs_format": "float8_e4m3fn", "rhs_format": "float8_e4m3fn"}, A100),
    "float8_e5m2 on both sides": (XLA, {"lhs_format": "float8_e5m2", "rhs_format": "float8_e5m2"}, H100),
    "lhs is int8; this kernel's isn't quantised": (OURS, {}, None),
    "lhs is float64": (OURS, {"lhs_format": "float64"}, None),
    "40 columns aren't a multiple": (OURS, {**HALF, "rhs_shape": (128, 40)}, None),
    "a byte holds two of different groups": (OURS, {**HALF, "rhs_format": "int4", "groups": 128}, None),
    "8 bytes in a column share a scale": (OURS, {**HALF, "rhs_format": "int4", "groups": 8}, None),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    kernel, change, device = REFUSALS[reason]
    verdict = kernel.supports(dataclasses.replace(BASE, **change), device)
    assert not verdict
    assert reason in verdict.reason
