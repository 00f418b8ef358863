"""Every case of the table in docs/results/kernels-compiled.md, compiled for each generation; slow: KANAWA_AOT=1."""

import math
import os

import pytest
from kanawa.composition.target import parse_target
from kanawa_backends_tpu.kernels.attention.paged_layout import fitting
from kanawa_backends_tpu.topology import missing_wheels
from tpu_compiled import CASES, TARGETS, Case, compiled_bytes

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.skipif(missing_wheels(), reason='no libtpu: pip install "kanawa-backends-tpu[tpu]"'),
    # libtpu's own start-up message about the environment that it doesn't find.
    pytest.mark.filterwarnings("default"),
]
MIB = 2**20


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel} {case.purpose}")
@pytest.mark.parametrize("selector", TARGETS)
def test_compiles(selector: str, case: Case):
    needed = compiled_bytes(case, parse_target(selector))
    # The pools of a serving case are 128 MiB and more: a kernel that had them copied would show it.
    if case.kernel == "attention.tpu.paged":
        pools = 2 * 64 * 2048 * 8 * 64 * 2
        assert needed < 96 * MIB + (2 * pools if fitting(case.problem) != case.problem else 0)
    # Scores of one head alone are 64 MiB, and there are 32. A bias is turned for the backward kernel.
    bias = math.prod(getattr(case.problem, "bias_shape", None) or (0,)) * 2
    assert case.kernel != "attention.tpu.flash" or needed < 256 * MIB + bias
