"""attention.cpu.blockwise: exact attention in tiles, with a few tiles of scores in memory at a time.

Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021), with the backward of FlashAttention-2. Tiles that
a mask empties for certain are skipped, so a causal mask halves the work.
"""

from typing import Any, ClassVar

import jax
from kanawa.kernels.attention.paged import with_existing_values
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_backends_cpu.kernels.attention import blockwise_tiles
from kanawa_backends_cpu.kernels.attention.blockwise_tiles import Tiling, tile_problem


class BlockwiseAttention(Kernel):
    """Unrolled tiles in plain JAX, with native matmuls or oneDNN's where those are faster than XLA's."""

    name: ClassVar[str] = "attention.cpu.blockwise"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout"})

    #: With fewer keys or queries, one matmul computes all scores, and there is nothing to skip.
    shortest: ClassVar[int] = 128
    fewest_queries: ClassVar[int] = 64
    #: Small tiles waste less on a causal mask's diagonal and stay in the cache; XLA compiles few large ones faster.
    smallest_tile: ClassVar[int] = 128
    largest_tile: ClassVar[int] = 512
    #: Spans that a length is cut into at most: very long ones get tiles larger than `largest_tile`.
    most_spans: ClassVar[int] = 13

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support for dense attention except over the shortest lengths."""
        return first_refusal(
            (problem.paged, "keys are paged; it takes dense keys"),
            (
                problem.kv_length < self.shortest,
                f"kv_length {problem.kv_length} is under {self.shortest}: the reference is faster",
            ),
            (
                problem.q_length < self.fewest_queries,
                f"q_length {problem.q_length} is under {self.fewest_queries}: the reference is faster",
            ),
        )

    def tunings(self, problem: AttentionProblem, device: Any) -> tuple[Tuning, ...]:
        """Returns the sizes of tiles worth measuring beside its own choice."""
        own = self._tile(problem.kv_length)
        sizes = (self.smallest_tile, 2 * self.smallest_tile, self.largest_tile)
        return tuple((("tile", size),) for size in sizes if size != own and size <= problem.kv_length)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T], sinks included)."""
        operands = with_existing_values(operands)
        return blockwise_tiles.forward(problem, operands, self._tiling(problem))

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns fp32 cotangents, recomputing each tile's scores from the log-sum-exp."""
        return blockwise_tiles.backward(problem, operands, out, residuals, cotangents, self._tiling(problem))

    def _tiling(self, problem: AttentionProblem) -> Tiling:
        return tile_problem(problem, self._tile(problem.q_length), self._tile(problem.kv_length))

    def _tile(self, length: int) -> int:
        """Returns a tile's size: about an eighth of a length, more for very long ones."""
        unit = self.smallest_tile
        size = min(-(-length // (8 * unit)) * unit, self.largest_tile)
        return self.setting("tile", max(size, -(-length // (self.most_spans * unit)) * unit))
