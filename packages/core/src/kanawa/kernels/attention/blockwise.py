"""attention.cpu.blockwise: exact attention in tiles, never holding more than a few tiles of scores.

Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021), with the backward of FlashAttention-2. Tiles that
a mask empties for certain are skipped, so a causal mask halves the work.
"""

from typing import Any, ClassVar

import jax

from kanawa.kernels.attention import blockwise_loop, blockwise_tiles
from kanawa.kernels.attention.blocks import block_size
from kanawa.kernels.attention.blockwise_tiles import Tiling, tiling
from kanawa.kernels.attention.paged import with_existing_values
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal


class BlockwiseAttention(Kernel):
    """Tiles written out in plain JAX, their products beside XLA's where those are quicker; many are looped over."""

    name: ClassVar[str] = "attention.cpu.blockwise"
    operation: ClassVar[str] = "attention"
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout"})

    #: With fewer keys or queries than these one product has all scores, and there is nothing to skip.
    shortest: ClassVar[int] = 128
    fewest_queries: ClassVar[int] = 64
    #: Small tiles waste less on a causal mask's diagonal and stay in the cache; large ones make fewer of them.
    smallest_tile: ClassVar[int] = 128
    largest_tile: ClassVar[int] = 512
    #: More tiles than these take XLA longer to compile than looping over them costs.
    most_tiles: ClassVar[int] = 96

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support for dense attention but over the shortest lengths."""
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
        cut = self._written_out(problem)
        if cut is not None:
            return blockwise_tiles.forward(problem, operands, cut)
        return blockwise_loop.forward(problem, operands, *self._blocks(problem))

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns fp32 cotangents, recomputing each tile's scores from the log-sum-exp."""
        cut = self._written_out(problem)
        if cut is not None:
            return blockwise_tiles.backward(problem, operands, out, residuals, cotangents, cut)
        return blockwise_loop.backward(problem, operands, out, residuals, cotangents, *self._blocks(problem))

    def _written_out(self, problem: AttentionProblem) -> Tiling | None:
        """Returns the tiles to write out, or None where loops do better."""
        cut = tiling(problem, self._tile(problem.q_length), self._tile(problem.kv_length))
        few = sum(len(seen) for seen in cut.pairs) <= self.most_tiles
        # A loop's blocks are of one size, and know nothing of lengths that differ between rows or of dropout.
        loops = all(self._blocks(problem)) and not (problem.has_kv_lengths or problem.dropout_rate)
        return None if loops and not few else cut

    def _tile(self, length: int) -> int:
        """Returns about an eighth of a length, so that its tiles are at most 64."""
        steps = -(-length // (8 * self.smallest_tile))
        return self.setting("tile", min(steps * self.smallest_tile, self.largest_tile))

    def _blocks(self, problem: AttentionProblem) -> tuple[int, int]:
        """Returns the loops' sizes of blocks of queries and keys, 0 where a length has no divisor that would do."""
        sizes = (self.largest_tile, self.fewest_queries)
        return block_size(problem.q_length, *sizes) or 0, block_size(problem.kv_length, *sizes) or 0
