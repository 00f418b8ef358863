"""diagonal_recurrence.tpu.scan: token after token, with the state on chip; each array is read or written once.

A prefix scan in XLA reads and writes the arrays log2(T) times over. Here a step of one token is a product and a sum of
all channels of a block, which is less than what fetching them takes.
"""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kanawa.kernels.diagonal_recurrence import DiagonalRecurrenceProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

#: Rows of a tile of 32-bit values.
_TILE = 8
_LANES = 128
#: Tokens of a block, and channels at most: six arrays of them twice, in the backward pass, take 12 MiB. A token's work
#: is as much for the scalar unit as for 512 channels.
_TOKENS = 256
_CHANNELS = 1024
_ORDER = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


class ScanDiagonalRecurrence(Kernel):
    """Forward, and backward as the same from the end; keeps its output alone."""

    name: ClassVar[str] = "diagonal_recurrence.tpu.scan"
    priority: ClassVar[int] = 20
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    #: Pallas's interpreter instead of a TPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: DiagonalRecurrenceProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what makes the call too small for blocks."""
        return first_refusal(
            (problem.length < _TILE, f"{problem.length} tokens; a tile has {_TILE}, and XLA fuses fewer"),
            (problem.batch * problem.channels == 0, "no rows or no channels"),
        )

    def tunings(self, problem: DiagonalRecurrenceProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other sizes of blocks."""
        return ((("block_tokens", 512), ("block_channels", 512)), (("block_tokens", 128), ("block_channels", 2048)))

    def forward(self, problem: DiagonalRecurrenceProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (h fp32 [B, T, C], None)."""
        decay, x = (operands[name].astype(jnp.float32) for name in ("decay", "x"))
        tokens, channels, grid = self._blocks(problem)
        block = pl.BlockSpec((1, tokens, channels), lambda row, part, time: (row, time, part))
        call = pl.pallas_call(
            _forward,
            grid=grid,
            in_specs=[block, block],
            out_specs=block,
            scratch_shapes=[pltpu.VMEM((1, channels), jnp.float32)],
            out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
            compiler_params=_ORDER,
            cost_estimate=_cost(problem, arrays=3, flops=2),
            interpret=self.interpret,
            name="kanawa_diagonal_recurrence_fwd",
        )
        return call(decay, x), None

    def backward(
        self,
        problem: DiagonalRecurrenceProblem,
        operands: Operands,
        out: jax.Array,
        residuals: None,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents: dh_t = cotangent_t + a_(t+1) dh_(t+1), dx = dh, da_t = dh_t h_(t-1)."""
        decay = operands["decay"].astype(jnp.float32)
        tokens, channels, grid = self._blocks(problem)
        last = grid[2] - 1

        def before(row: Any, part: Any, time: Any) -> tuple[Any, Any, Any]:
            # The tile that ends before the block begins: its last row is the state that enters the block.
            return row, jnp.maximum((last - time) * (tokens // _TILE) - 1, 0), part

        block = pl.BlockSpec((1, tokens, channels), lambda row, part, time: (row, last - time, part))
        shape = jax.ShapeDtypeStruct(decay.shape, jnp.float32)
        call = pl.pallas_call(
            functools.partial(_backward, problem.length),
            grid=grid,
            in_specs=[block, block, block, pl.BlockSpec((1, _TILE, channels), before)],
            out_specs=[block, block],
            scratch_shapes=[pltpu.VMEM((1, channels), jnp.float32)],
            out_shape=[shape, shape],
            compiler_params=_ORDER,
            cost_estimate=_cost(problem, arrays=5, flops=3),
            interpret=self.interpret,
            name="kanawa_diagonal_recurrence_bwd",
        )
        ddecay, dx = call(decay, cotangents.astype(jnp.float32), out, out)
        return {"decay": ddecay, "x": dx}

    def _blocks(self, problem: DiagonalRecurrenceProblem) -> tuple[int, int, tuple[int, int, int]]:
        """Returns tokens and channels of a block, and the grid: rows, blocks of channels, blocks of tokens."""
        tokens = min(self.setting("block_tokens", _TOKENS), problem.length // _TILE * _TILE)
        most = self.setting("block_channels", _CHANNELS)
        # Equal parts in whole tiles: a last one that is mostly empty would take as long as the others.
        even = pl.cdiv(pl.cdiv(problem.channels, pl.cdiv(problem.channels, most)), _LANES) * _LANES
        channels = min(even, problem.channels)
        return tokens, channels, (problem.batch, pl.cdiv(problem.channels, channels), pl.cdiv(problem.length, tokens))


def _forward(decay: Any, x: Any, h: Any, state: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        state[...] = jnp.zeros_like(state)

    def one_token(t: Any, carried: jax.Array) -> jax.Array:
        row = pl.ds(t, 1)
        after: jax.Array = decay[0, row] * carried + x[0, row]
        h[0, row] = after
        return after

    # Past the last token lies whatever was there before: it can only spoil what comes after it, which isn't written.
    state[...] = jax.lax.fori_loop(0, x.shape[1], one_token, state[...], unroll=_TILE)


def _backward(length: int, decay: Any, cotangent: Any, h: Any, h_before: Any, ddecay: Any, dx: Any, state: Any) -> None:
    tokens = h.shape[1]
    first = (pl.num_programs(2) - 1 - pl.program_id(2)) * tokens

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        state[...] = jnp.zeros_like(state)

    def one_token(t: Any, carried: jax.Array, before: jax.Array) -> jax.Array:
        row = pl.ds(t, 1)
        grad = cotangent[0, row] + carried
        dx[0, row] = grad
        ddecay[0, row] = grad * before
        before_token: jax.Array = decay[0, row] * grad
        return before_token

    def not_first(count: Any, carried: jax.Array) -> jax.Array:
        t = live - 1 - count
        return one_token(t, carried, h[0, pl.ds(t - 1, 1)])

    def eight(group: Any, carried: jax.Array) -> jax.Array:
        for count in range(_TILE):
            carried = not_first(single + group * _TILE + count, carried)
        return carried

    # From the last token that exists; what lies past it would go into all the others.
    live = jnp.minimum(tokens, length - first)
    single = (live - 1) % _TILE
    carried = jax.lax.fori_loop(0, single, not_first, state[...])
    carried = jax.lax.fori_loop(0, (live - 1) // _TILE, eight, carried)
    entering = jnp.where(first > 0, h_before[0, _TILE - 1 :], 0.0)
    state[...] = one_token(0, carried, entering)


def _cost(problem: DiagonalRecurrenceProblem, *, arrays: int, flops: int) -> pl.CostEstimate:
    elements = problem.batch * problem.length * problem.channels
    return pl.CostEstimate(flops=flops * elements, bytes_accessed=4 * arrays * elements, transcendentals=0)
