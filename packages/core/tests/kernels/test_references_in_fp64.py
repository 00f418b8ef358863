"""References in the dtypes that users have, against themselves in fp64: they too keep the tolerances of kernels."""

import pytest
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.grouped_matmul import ReferenceGroupedMatmul
from kanawa.kernels.linear_recurrence import ReferenceLinearRecurrence
from kanawa.testing.kernel import KernelConformance


class TestGroupedMatmul(KernelConformance):
    def kernel(self):
        return ReferenceGroupedMatmul()

    def problems(self):
        return ()


@pytest.mark.nightly
class TestAttention(KernelConformance):
    def kernel(self):
        return ReferenceAttention()

    def problems(self):
        return ()


@pytest.mark.nightly
class TestLinearRecurrence(KernelConformance):
    def kernel(self):
        return ReferenceLinearRecurrence()

    def problems(self):
        return ()
