"""The diagonal scan in Pallas's interpreter against core's reference, and what it refuses."""

from typing import ClassVar

from kanawa.kernels.diagonal_recurrence import DiagonalRecurrenceProblem
from kanawa.kernels.operation import Tuning
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_tpu.kernels.diagonal_recurrence.scan import ScanDiagonalRecurrence


class Interpreted(ScanDiagonalRecurrence):
    """The same kernel without a TPU, in blocks small enough that there are several."""

    interpret: ClassVar[bool] = True
    tuning: Tuning = (("block_tokens", 16), ("block_channels", 128))


class TestScan(KernelConformance):
    """Whole blocks, a last one of five tokens, less than a block, and channels that end within one."""

    generated: ClassVar[int] = 3
    fewest_accepted: ClassVar[int] = 3

    def kernel(self) -> ScanDiagonalRecurrence:
        return Interpreted()

    def problems(self) -> tuple[DiagonalRecurrenceProblem, ...]:
        sizes = ((2, 32, 128), (1, 37, 200), (2, 9, 8))
        return tuple(DiagonalRecurrenceProblem(batch=b, length=t, channels=c) for b, t, c in sizes)


def test_a_token_is_too_little():
    verdict = ScanDiagonalRecurrence().supports(DiagonalRecurrenceProblem(batch=2, length=1, channels=64), None)
    assert "1 tokens; a tile has 8" in verdict.reason
