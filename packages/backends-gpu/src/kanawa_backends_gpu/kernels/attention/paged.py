"""attention.gpu.paged: attention over pages of keys for NVIDIA GPUs, in Pallas on Triton.

Rows of queries, or one row with the queries of many sequences (decoding, prefill and both at once). Keys are gathered
through the page table inside the kernel: no copy of a sequence is made, and no page past its length is read (see
`streaming.py`). Compiled for H100 and B200, run in Pallas's interpreter, never on a GPU.
"""

from typing import TYPE_CHECKING, ClassVar

import jax
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, refuse

from kanawa_backends_gpu.kernels.attention.over_cache import attend, refusal, tunings

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec


class PagedAttention(Kernel):
    """Decoding and prefill over pages, of any size, ragged queries too: any mask, bias, cap, sinks; no gradient."""

    name: ClassVar[str] = "attention.gpu.paged"
    operation: ClassVar[str] = "attention"
    platforms: ClassVar[tuple[str, ...]] = ("gpu",)
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi"})
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"attention_over_cache", 2),)
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: AttentionProblem, device: "DeviceSpec | None") -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        if not problem.paged:
            return refuse("keys lie in rows; attention.gpu.decode reads those")
        return refusal(problem)

    def tunings(self, problem: AttentionProblem, device: "DeviceSpec | None") -> tuple[Tuning, ...]:
        """Returns other steps of keys (`keys`) and numbers of programs (`programs`)."""
        return tunings(problem)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out [B, T, H, Dv] in q's dtype, log-sum-exp fp32 [B, H, T])."""
        return attend(self, problem, operands, interpret=self.interpret)
