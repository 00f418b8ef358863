"""The NKI RMSNorm against the reference, in the interpreter."""

import dataclasses

import pytest
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_neuron.kernels.rms_norm.kernel import NkiRMSNorm
from kanawa_kernel_tools.examples.rms_norm import BASE


class TestRMSNorm(KernelConformance):
    def kernel(self):
        return NkiRMSNorm()


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"dtype": "float64"}, "dtype float64; needs"),
        ({"width": 8192}, "width 8192; 6582 at most fit in SBUF in float32"),
        ({"rows": 8191}, "8191 rows have no divisor between 32 and 2048"),
    ],
)
def test_refusals_say_why(change, reason):
    verdict = NkiRMSNorm().supports(dataclasses.replace(BASE, **change), None)
    assert not verdict
    assert reason in verdict.reason
