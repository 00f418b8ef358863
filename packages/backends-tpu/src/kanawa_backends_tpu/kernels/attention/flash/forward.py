"""The forward kernel: queries along sublanes, keys along lanes, the maximum and the sum of a query equal along lanes.

A step holds a block of queries and of keys. While the vector units do the softmax of one group of queries, the matrix
units do the next group's scores: that order is written down, since the compiler's scheduler keeps close to it.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kanawa.kernels.attention.problem import AttentionProblem

from kanawa_backends_tpu.kernels.attention.flash.block import (
    COLUMNS,
    OF_QUERIES,
    Block,
    block,
    column_shapes,
    store_columns,
)
from kanawa_backends_tpu.kernels.attention.flash.masking import HIDDEN, LANES
from kanawa_backends_tpu.kernels.attention.flash.matmuls import ROWS_BY_COLUMNS, ROWS_BY_ROWS, Base, tile_matmul
from kanawa_backends_tpu.kernels.attention.flash.scalars import for_each_part, reach_of_blocks
from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles, divisor
from kanawa_backends_tpu.kernels.attention.flash.windows import Windows


@dataclass(frozen=True)
class ForwardKernel:
    """The kernel's body, called with references: prefetched scalars, operands, outputs, scratch, in this order.

    Attributes:
        group: queries and keys of one piece of work: as many as spilled registers allow.
    """

    problem: AttentionProblem
    tiles: Tiles
    base: Base
    scalars: tuple[str, ...]
    operands: tuple[str, ...]
    group: tuple[int, int]

    def __call__(self, *references: Any) -> None:
        """Computes one step of the grid (batch, head, step)."""
        names = (*self.scalars, *self.operands, "out", "lse", "top", "total", "sum", *COLUMNS)
        refs = dict(zip(names, references, strict=False))
        row, head, step = (pl.program_id(axis) for axis in range(3))
        i, j, flags = refs["q"][step], refs["kv"][step], refs["flags"][step]

        @pl.when(flags & 1 != 0)
        def start() -> None:
            self._start(refs, head)

        some, every = reach_of_blocks(refs, self.tiles, self.problem.batch, row, i, j)
        of = block(refs, self.problem, self.tiles, (row, head, i, j), queries_down=True)
        if not self.tiles.has_cut_blocks:
            self._whole(refs, of)
        else:

            @pl.when(some)
            def visit() -> None:
                whole, parts = lambda: self._whole(refs, of), lambda: self._parts(refs, of, row, i, j)
                jax.lax.cond(every, whole, parts)

        @pl.when(flags & 2 != 0)
        def finish() -> None:
            self._finish(refs)

    def _start(self, refs: dict[str, Any], head: Any) -> None:
        shape = refs["top"].shape
        if self.problem.has_sinks:
            # A sink is a key with a known score and a value of zero.
            sink = jnp.maximum(jnp.full(shape, refs["sinks"][head], jnp.float32), HIDDEN)
            first = jax.lax.broadcasted_iota(jnp.int32, shape, 1) == 0
            refs["top"][...] = sink
            refs["total"][...] = jnp.where(first & (sink > HIDDEN), 1.0, 0.0)
        else:
            refs["top"][...] = jnp.full(shape, HIDDEN, jnp.float32)
            refs["total"][...] = jnp.zeros(shape, jnp.float32)
        refs["sum"][...] = jnp.zeros_like(refs["sum"])
        store_columns(refs, OF_QUERIES)

    def _whole(self, refs: dict[str, Any], of: Block) -> None:
        q, kv = self.tiles.q.block, self.tiles.kv.block
        rows, keys = divisor(q, self.group[0]), divisor(kv, self.group[1])
        groups = [(r, k) for r in range(0, q, rows) for k in range(0, kv, keys)]
        scores = self._scores(refs, of, *groups[0], rows, keys)
        # The next group's matmul is issued before this one's softmax, so that the units overlap.
        for (r, k), following in itertools.pairwise(groups):
            ahead = self._scores(refs, of, *following, rows, keys)
            self._attend(refs, of, scores, r, k)
            scores = ahead
        self._attend(refs, of, scores, *groups[-1])

    def _parts(self, refs: dict[str, Any], of: Block, row: Any, i: Any, j: Any) -> None:
        def visit(first: Any, key: Any) -> None:
            scores = self._scores(refs, of, first, key, self.tiles.q.part, self.tiles.kv.part)
            self._attend(refs, of, of.masking(scores, first, key), first, key)

        for_each_part(refs, self.tiles, self.problem.batch, row, i, j, visit)

    def _scores(self, refs: dict[str, Any], of: Block, first: Any, key: Any, rows: int, keys: int) -> jax.Array:
        scores = tile_matmul(refs["queries"][pl.ds(first, rows), :], refs["k"][pl.ds(key, keys), :], ROWS_BY_ROWS)
        return of.additions(self.base.capped(scores)[0], first, key)

    def _attend(self, refs: dict[str, Any], of: Block, scores: jax.Array, first: Any, key: Any) -> None:
        rows, keys = scores.shape
        queries = pl.ds(first, rows)
        pieces = [scores[:, lane : lane + LANES] for lane in range(0, keys, LANES)]
        before = refs["top"][queries, :]
        top = jnp.maximum(before, jnp.max(functools.reduce(jnp.maximum, pieces), axis=1, keepdims=True))
        shrunk = jnp.exp2(before - top)
        weights = [jnp.exp2(piece - top) for piece in pieces]
        # Summed within a lane only: the sum across lanes is taken once, at the end.
        refs["total"][queries, :] = refs["total"][queries, :] * shrunk + functools.reduce(jnp.add, weights)
        refs["top"][queries, :] = top
        v = refs["v"][pl.ds(key, keys), :]
        if self.problem.has_kv_lengths:
            v = of.masking.existing(v, key)
        weights_left = of.dropping(jnp.concatenate(weights, axis=1), first, key)
        weighed = tile_matmul(weights_left.astype(v.dtype), v, ROWS_BY_COLUMNS)
        refs["sum"][queries, :] = refs["sum"][queries, :] * widened(shrunk, weighed.shape[1]) + weighed

    def _finish(self, refs: dict[str, Any]) -> None:
        top = refs["top"][...]
        total = jnp.broadcast_to(jnp.sum(refs["total"][...], axis=1, keepdims=True), top.shape)
        sees = top > HIDDEN
        # A query that sees nothing has summed as many ones as it has hidden keys.
        share = jnp.where(sees, 1.0 / (total * (1.0 - self.problem.dropout_rate)), 0.0)
        out = refs["sum"][...]
        refs["out"][...] = (out * widened(share, out.shape[1])).astype(refs["out"].dtype)
        lse = jnp.where(sees, (top + jnp.log2(total)) * self.base.to_natural, -jnp.inf)
        refs["lse"][...] = lse.T[:1, :]


def widened(x: jax.Array, width: int) -> jax.Array:
    """Returns [n, 128], equal along lanes, as [n, width]."""
    copies = -(-width // LANES)
    return (x if copies == 1 else jnp.concatenate([x] * copies, axis=1))[:, :width]


def forward_call(
    body: ForwardKernel, heads: int, arrays: dict[str, jax.Array], scalars: dict[str, jax.Array], interpret: bool
) -> Callable[[], tuple[jax.Array, jax.Array]]:
    """Returns the call: arrays as [B, H, T, D], positions and ids as [B, 1, T]; gives out and [B, H, 1, T]."""
    problem, tiles = body.problem, body.tiles
    steps = scalars["q"].shape[0]
    windows = Windows(tiles, tuple(scalars), steps, problem.group_size, loaded="kv")
    rows, wide = tiles.q.block, problem.v_head_dim
    scratch = [pltpu.VMEM((rows, LANES), jnp.float32)] * 2
    scratch.append(pltpu.VMEM((rows, wide), jnp.float32))
    scratch += column_shapes(OF_QUERIES, body.operands, rows)
    out_shape = (
        jax.ShapeDtypeStruct((problem.batch, heads, tiles.q.padded, wide), jnp.dtype(problem.dtype)),
        jax.ShapeDtypeStruct((problem.batch, heads, 1, tiles.q.padded), jnp.float32),
    )
    call = pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(problem.batch, heads, steps),
            in_specs=[windows.operand(name, arrays[name].shape, backward=False) for name in body.operands],
            out_specs=[
                pl.BlockSpec((None, None, rows, wide), lambda b, h, n, *s: (b, h, windows.block("q", b, n, s), 0)),
                pl.BlockSpec((None, None, 1, rows), lambda b, h, n, *s: (b, h, 0, windows.block("q", b, n, s))),
            ],
            scratch_shapes=scratch,
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=48 * 2**20
        ),
        interpret=interpret,
        name="flash_attention_forward",
    )
    return functools.partial(call, *scalars.values(), *(arrays[name] for name in body.operands))
