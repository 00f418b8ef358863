"""The backward kernel for a dense bias: each block of it is summed on chip over all rows and heads that share it.

A call of its own, with the scores done again: where the gradient of a bias that is data isn't used, XLA leaves it
out. No score is ever stored, so that the gradient of a shared bias takes the bias's own memory.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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
from kanawa_backends_tpu.kernels.attention.flash.masking import LANES
from kanawa_backends_tpu.kernels.attention.flash.matmuls import ROWS_BY_ROWS, Base, tile_matmul
from kanawa_backends_tpu.kernels.attention.flash.scalars import for_each_part, reach_of_blocks
from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles

#: Dimensions of the grid: those of the bias (rows, heads, blocks of queries and of keys), and of each how often it is
#: shared. Of two that belong together one has a single step, so that their sum is the place.
_PLACES = 4
#: Programs of one place may run in any order; those that add to it run one after the other.
_ORDER: Final = (
    *("parallel", "parallel", "parallel", "parallel"),
    *("arbitrary", "arbitrary", "arbitrary", "arbitrary"),
)


class _Place(NamedTuple):
    row: Any
    head: Any
    i: Any
    j: Any


@dataclass(frozen=True)
class BiasGradientKernel:
    """The kernel's body, called with references: prefetched scalars, operands, output, scratch, in this order."""

    problem: AttentionProblem
    tiles: Tiles
    base: Base
    scalars: tuple[str, ...]
    operands: tuple[str, ...]

    def __call__(self, *references: Any) -> None:
        """Computes one step of the grid: what one block of scores of one head adds to a block of the bias."""
        refs = dict(zip((*self.scalars, *self.operands, "dbias", "sum", *COLUMNS), references, strict=True))
        at = _Place(*(pl.program_id(axis) + pl.program_id(axis + _PLACES) for axis in range(_PLACES)))
        shared = [(pl.program_id(axis), pl.num_programs(axis)) for axis in range(_PLACES, 2 * _PLACES)]

        @pl.when(functools.reduce(jnp.logical_and, [step == 0 for step, _ in shared]))
        def start() -> None:
            refs["sum"][...] = jnp.zeros_like(refs["sum"])

        some, _ = reach_of_blocks(refs, self.tiles, self.problem.batch, at.row, at.i, at.j)

        @pl.when(some)
        def visit() -> None:
            store_columns(refs, OF_QUERIES)
            of = block(refs, self.problem, self.tiles, at, queries_down=True)
            add = functools.partial(self._add, refs, of)
            for_each_part(refs, self.tiles, self.problem.batch, at.row, at.i, at.j, add)

        @pl.when(functools.reduce(jnp.logical_and, [step == count - 1 for step, count in shared]))
        def finish() -> None:
            dbias, (_, _, rows, columns) = refs["sum"][...], self.problem.bias_shape or (1, 1, 1, 1)
            if rows == 1:
                dbias = jnp.sum(dbias, axis=0, keepdims=True)
            elif columns == 1:
                dbias = jnp.broadcast_to(jnp.sum(dbias, axis=1, keepdims=True), refs["dbias"].shape)
            refs["dbias"][...] = dbias.astype(refs["dbias"].dtype)

    def _add(self, refs: dict[str, Any], of: Block, first: Any, key: Any) -> None:
        queries, keys = pl.ds(first, self.tiles.q.part), pl.ds(key, self.tiles.kv.part)
        scores, _ = self.base.capped(tile_matmul(refs["queries"][queries, :], refs["k"][keys, :], ROWS_BY_ROWS))
        scores = of.masking(of.additions(scores, first, key), first, key)
        dweights = tile_matmul(refs["dout"][queries, :], refs["v"][keys, :], ROWS_BY_ROWS)
        if self.problem.dropout_rate:
            dweights = of.dropping(dweights * of.dropping.factor, first, key)
        lse, delta = (_down(refs[name][:, queries]) for name in ("lse", "delta"))
        # The cap comes before the bias: its derivative has no part in this.
        refs["sum"][queries, keys] += jnp.exp2(scores - lse) * (dweights - delta)


def _down(x: jax.Array) -> jax.Array:
    """Returns [1, n] as [n, 1], along sublanes."""
    return jnp.broadcast_to(x, (LANES, x.shape[1])).T[:, :1]


def bias_gradient_call(
    body: BiasGradientKernel, arrays: dict[str, jax.Array], scalars: dict[str, jax.Array], dtype: Any, interpret: bool
) -> Callable[[], jax.Array]:
    """Returns the call: arrays as the forward kernel's and the backward's; gives the bias's gradient in its shape."""
    problem, tiles = body.problem, body.tiles
    shape = problem.bias_shape or (1, 1, 1, 1)
    whole = (problem.batch, problem.num_heads, tiles.q.blocks, tiles.kv.blocks)
    own = [1 if size == 1 else of_whole for size, of_whole in zip(shape, whole, strict=True)]
    shared = [of_whole // of_own for of_own, of_whole in zip(own, whole, strict=True)]
    height = 1 if shape[2] == 1 else tiles.q.block
    # A column of 128 equal lanes: the compiler moves whole tiles.
    width = tiles.kv.block if shape[2] == 1 or shape[3] != 1 else LANES

    def out(*index: Any) -> tuple[Any, ...]:
        return index[:_PLACES]

    call = pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(*own, *shared),
            in_specs=[_window(name, arrays[name].shape, body) for name in body.operands],
            out_specs=pl.BlockSpec((None, None, height, width), out),
            scratch_shapes=[
                pltpu.VMEM((tiles.q.block, tiles.kv.block), jnp.float32),
                *column_shapes(OF_QUERIES, body.operands, tiles.q.block),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((*own[:2], own[2] * height, own[3] * width), dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=_ORDER, vmem_limit_bytes=48 * 2**20),
        interpret=interpret,
        name="flash_attention_bias",
    )

    def gradient() -> jax.Array:
        dbias: jax.Array = call(*scalars.values(), *(arrays[name] for name in body.operands))
        if shape[3] == 1 and shape[2] != 1:
            return dbias[:, :, : shape[2], :1]
        dbias = dbias[:, :, : shape[2], : problem.kv_length]
        return jnp.sum(dbias, axis=3, keepdims=True) if shape[3] == 1 else dbias

    return gradient


def _window(name: str, shape: tuple[int, ...], body: BiasGradientKernel) -> pl.BlockSpec:
    """Returns the window of an operand for a grid of `_PLACES`, twice."""
    tiles, group = body.tiles, body.problem.group_size

    def at(*index: Any) -> _Place:
        return _Place(*(index[axis] + index[axis + _PLACES] for axis in range(_PLACES)))

    def of_bias(*index: Any) -> tuple[Any, ...]:
        place = at(*index)
        return tuple(0 if size == 1 else x for size, x in zip(shape[:2], place[:2], strict=True)) + (
            0 if name == "bias_across" else place.i,
            0 if name == "bias_down" else place.j,
        )

    if name.startswith("bias"):
        height = 1 if name == "bias_across" else tiles.q.block
        return pl.BlockSpec((None, None, height, LANES if name == "bias_down" else tiles.kv.block), of_bias)
    of_keys = name in ("k", "v") or name.startswith("kv_")
    size = (tiles.kv if of_keys else tiles.q).block
    if len(shape) == 3:
        return pl.BlockSpec((None, 1, size), lambda *index: (at(*index).row, 0, at(*index)[3 if of_keys else 2]))
    if shape[2] == 1:
        return pl.BlockSpec((None, None, 1, size), lambda *index: (*at(*index)[:2], 0, at(*index).i))
    if of_keys:
        rows = (None, None, size, shape[3])
        return pl.BlockSpec(rows, lambda *index: (at(*index).row, at(*index).head // group, at(*index).j, 0))
    return pl.BlockSpec((None, None, size, shape[3]), lambda *index: (*at(*index)[:3], 0))
