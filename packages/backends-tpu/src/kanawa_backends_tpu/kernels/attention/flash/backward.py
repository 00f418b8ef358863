"""The backward kernel: the gradients of queries, keys and values in one pass, five matmuls a pair of blocks.

Keys along sublanes, queries along lanes: what is known of a query, its log-sum-exp and delta, is then a row, and the
weights go into the products for keys and values as they are. Blocks are visited keys by keys; the queries' gradient is
summed on chip for the whole row, [D, T] in fp32, and so are keys' and values' where query heads share them.
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
    OF_KEYS,
    Block,
    block,
    column_shapes,
    store_columns,
)
from kanawa_backends_tpu.kernels.attention.flash.masking import LANES
from kanawa_backends_tpu.kernels.attention.flash.matmuls import (
    COLUMNS_BY_COLUMNS,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    Base,
    tile_matmul,
)
from kanawa_backends_tpu.kernels.attention.flash.scalars import for_each_part, reach_of_blocks
from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles, divisor
from kanawa_backends_tpu.kernels.attention.flash.windows import Windows


@dataclass(frozen=True)
class BackwardKernel:
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
        """Computes one step of the grid (batch, key head, query head of the group, step)."""
        names = (*self.scalars, *self.operands, "dq", "dk", "dv", "dq_sum", "dk_sum", "dv_sum", *COLUMNS)
        refs = dict(zip(names, references, strict=False))
        row, kv_head, member, step = (pl.program_id(axis) for axis in range(4))
        i, j, flags = refs["q"][step], refs["kv"][step], refs["flags"][step]
        q = self.tiles.q.block

        @pl.when(flags & 1 != 0)
        def start_queries() -> None:
            refs["dq_sum"][:, _block(i, q)] = jnp.zeros((self.problem.head_dim, q), jnp.float32)

        @pl.when(flags & 4 != 0)
        def start_keys() -> None:
            self._start_keys(refs, member, j)

        some, every = reach_of_blocks(refs, self.tiles, self.problem.batch, row, i, j)
        head = kv_head * self.problem.group_size + member
        of = block(refs, self.problem, self.tiles, (row, head, i, j), queries_down=False)
        if not self.tiles.has_cut_blocks:
            self._whole(refs, of, i, j)
        else:

            @pl.when(some)
            def visit() -> None:
                whole, parts = lambda: self._whole(refs, of, i, j), lambda: self._parts(refs, of, row, i, j)
                jax.lax.cond(every, whole, parts)

        @pl.when(flags & 2 != 0)
        def finish_queries() -> None:
            refs["dq"][...] = (refs["dq_sum"][:, _block(i, q)] * self.problem.scale).astype(refs["dq"].dtype)

        @pl.when((flags & 8 != 0) & (member == self.problem.group_size - 1))
        def finish_keys() -> None:
            at = self._keys(j, 0, self.tiles.kv.block)
            # The queries that it was multiplied with were scaled already, to base 2.
            dk = refs["dk_sum"][at, :] * (self.problem.scale / self.base.queries)
            refs["dk"][...] = dk.astype(refs["dk"].dtype)
            dv = refs["dv_sum"][at, :]
            refs["dv"][...] = (dv * of.dropping.factor if self.problem.dropout_rate else dv).astype(refs["dv"].dtype)

    def _keys(self, j: Any, start: Any, count: int) -> Any:
        """Returns where keys' sums lie: all blocks are held where query heads share keys, else the present one."""
        base = 0 if self.problem.group_size == 1 else j * self.tiles.kv.block
        at = base + start
        return pl.ds(at if isinstance(at, int) else pl.multiple_of(at, LANES), count)

    def _start_keys(self, refs: dict[str, Any], member: Any, j: Any) -> None:
        @pl.when(member == 0)
        def clear() -> None:
            at = self._keys(j, 0, self.tiles.kv.block)
            for name in ("dk_sum", "dv_sum"):
                refs[name][at, :] = jnp.zeros((self.tiles.kv.block, refs[name].shape[1]), jnp.float32)

        store_columns(refs, OF_KEYS)

    def _whole(self, refs: dict[str, Any], of: Block, i: Any, j: Any) -> None:
        q, kv = self.tiles.q.block, self.tiles.kv.block
        rows, keys = divisor(q, self.group[0]), divisor(kv, self.group[1])
        groups = [(r, k) for k in range(0, kv, keys) for r in range(0, q, rows)]
        products = self._products(refs, of, *groups[0], rows, keys)
        for (r, k), following in itertools.pairwise(groups):
            ahead = self._products(refs, of, *following, rows, keys)
            self._add(refs, of, products, r, k, i, j)
            products = ahead
        self._add(refs, of, products, *groups[-1], i, j)

    def _parts(self, refs: dict[str, Any], of: Block, row: Any, i: Any, j: Any) -> None:
        def visit(first: Any, key: Any) -> None:
            scores, bent, dweights = self._products(refs, of, first, key, self.tiles.q.part, self.tiles.kv.part)
            self._add(refs, of, (of.masking(scores, key, first), bent, dweights), first, key, i, j)

        for_each_part(refs, self.tiles, self.problem.batch, row, i, j, visit)

    def _products(
        self, refs: dict[str, Any], of: Block, first: Any, key: Any, rows: int, keys: int
    ) -> tuple[Any, Any, Any]:
        """Returns scores, the cap's tanh and the weights' gradients, all [keys, rows]."""
        queries, at = pl.ds(first, rows), pl.ds(key, keys)
        scores, bent = self.base.capped(tile_matmul(refs["k"][at, :], refs["queries"][queries, :], ROWS_BY_ROWS))
        scores = of.additions(scores, key, first)
        return scores, bent, tile_matmul(refs["v"][at, :], refs["dout"][queries, :], ROWS_BY_ROWS)

    def _add(
        self, refs: dict[str, Any], of: Block, products: tuple[Any, Any, Any], first: Any, key: Any, i: Any, j: Any
    ) -> None:
        scores, bent, dweights = products
        keys, rows = scores.shape
        queries, at, sums = pl.ds(first, rows), pl.ds(key, keys), self._keys(j, key, keys)
        k, q, dout = refs["k"][at, :], refs["queries"][queries, :], refs["dout"][queries, :]
        weights = jnp.exp2(scores - refs["lse"][:, queries])
        if self.problem.dropout_rate:
            dweights = of.dropping(dweights * of.dropping.factor, key, first)
        dscores = weights * (dweights - refs["delta"][:, queries])
        if bent is not None:
            dscores = dscores * (1 - bent * bent)
        dscores = dscores.astype(k.dtype)
        refs["dv_sum"][sums, :] += tile_matmul(
            of.dropping(weights, key, first).astype(dout.dtype), dout, ROWS_BY_COLUMNS
        )
        refs["dk_sum"][sums, :] += tile_matmul(dscores, q, ROWS_BY_COLUMNS)
        lane = pl.multiple_of(i * self.tiles.q.block + first, LANES)
        refs["dq_sum"][:, pl.ds(lane, rows)] += tile_matmul(k, dscores, COLUMNS_BY_COLUMNS)


def _block(index: Any, size: int) -> Any:
    return pl.ds(pl.multiple_of(index * size, LANES), size)


def scratch_bytes(problem: AttentionProblem, tiles: Tiles) -> int:
    """Returns the memory on chip that the sums of a row take."""
    sums = problem.head_dim * tiles.q.padded
    keys = tiles.kv.block if problem.group_size == 1 else tiles.kv.padded
    widths = sum(-(-width // LANES) * LANES for width in (problem.head_dim, problem.v_head_dim))
    return 4 * (sums + keys * widths)


def backward_call(
    body: BackwardKernel, arrays: dict[str, jax.Array], scalars: dict[str, jax.Array], interpret: bool
) -> Callable[[], tuple[jax.Array, jax.Array, jax.Array]]:
    """Returns the call: arrays as [B, H, T, D], those of a query as [B, H, 1, T]; gives dq [B, H, D, T], dk and dv."""
    problem, tiles, group = body.problem, body.tiles, body.problem.group_size
    q, kv, dtype = tiles.q.block, tiles.kv.block, jnp.dtype(problem.dtype)
    windows = Windows(tiles, tuple(scalars), scalars["q"].shape[0], group, loaded="q")

    def queries_out(b: Any, h: Any, g: Any, n: Any, *s: Any) -> tuple[Any, ...]:
        return b, h * group + g, 0, windows.look_up("queries_done", n, s)

    def keys_out(b: Any, h: Any, g: Any, n: Any, *s: Any) -> tuple[Any, ...]:
        block = windows.look_up("kv", n, s)
        # Written once the last query head of the group has been seen; until then the window stays where it begins.
        return b, h, jnp.where(g == group - 1, block, 0) if group > 1 else block, 0

    wide, v_wide = problem.head_dim, problem.v_head_dim
    held = kv if group == 1 else tiles.kv.padded
    scratch = [pltpu.VMEM((wide, tiles.q.padded), jnp.float32), pltpu.VMEM((held, wide), jnp.float32)]
    scratch.append(pltpu.VMEM((held, v_wide), jnp.float32))
    scratch += column_shapes(OF_KEYS, body.operands, kv)
    keys_shape = (problem.batch, problem.num_kv_heads, tiles.kv.padded)
    call = pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(problem.batch, problem.num_kv_heads, group, windows.steps),
            in_specs=[windows.operand(name, arrays[name].shape, backward=True) for name in body.operands],
            out_specs=[
                pl.BlockSpec((None, None, wide, q), queries_out),
                pl.BlockSpec((None, None, kv, wide), keys_out),
                pl.BlockSpec((None, None, kv, v_wide), keys_out),
            ],
            scratch_shapes=scratch,
        ),
        out_shape=(
            jax.ShapeDtypeStruct((problem.batch, problem.num_heads, wide, tiles.q.padded), dtype),
            jax.ShapeDtypeStruct((*keys_shape, wide), dtype),
            jax.ShapeDtypeStruct((*keys_shape, v_wide), dtype),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=scratch_bytes(problem, tiles) + 28 * 2**20,
        ),
        interpret=interpret,
        name="flash_attention_backward",
    )
    return functools.partial(call, *scalars.values(), *(arrays[name] for name in body.operands))
