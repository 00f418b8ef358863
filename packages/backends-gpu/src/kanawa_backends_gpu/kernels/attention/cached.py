"""attention.gpu.decode and attention.gpu.paged: attention over a cache for NVIDIA GPUs, in Pallas on Triton.

One query or a few against a long row of keys: reading the keys is all the work, so they are read once for all heads
that share them, and a row is split over as many programs as fill the GPU (see `streaming.py`). Pages are gathered
through the page table inside the kernel: no sequence is copied, and no page past its length is read. Compiled for H100
and B200, run in Pallas's interpreter, never on a GPU.
"""

from typing import ClassVar

import jax
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, refuse
from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu.kernels.attention.over_cache import attend, refusal, tunings


class _CachedAttention(Kernel):
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi"})
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"attention_over_cache", 2),)
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def tunings(self, problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other steps of keys (`keys`) and numbers of programs (`programs`)."""
        return tunings(problem)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out [B, T, H, Dv] in q's dtype, log-sum-exp fp32 [B, H, T])."""
        return attend(self, problem, operands, interpret=self.interpret)


class DecodeAttention(_CachedAttention):
    """Decoding and prefill over dense keys: any mask, lengths, positions, bias, cap, sinks; no gradient."""

    name: ClassVar[str] = "attention.gpu.decode"
    #: Under cuDNN and attention.gpu.pallas, whose tiles of queries are taller: it is for one query or a few.
    priority: ClassVar[int] = 4

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        return refuse("keys lie in pages; attention.gpu.paged reads those") if problem.paged else refusal(problem)


class PagedAttention(_CachedAttention):
    """Decoding and prefill over pages, of any size, ragged queries too: any mask, bias, cap, sinks; no gradient."""

    name: ClassVar[str] = "attention.gpu.paged"
    priority: ClassVar[int] = 10

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        return refusal(problem) if problem.paged else refuse("keys lie in rows; attention.gpu.decode reads those")
