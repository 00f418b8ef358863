"""The code of serving's matmul in bfloat16 by AVX-512's dot products of pairs, with nothing packed.

Weights laid out outputs first have the contracted dimension contiguous, as x has: lanes of a sum are places in K, and
the lanes are added up at the end. A work item is a block of rows and columns; the weights of a tile's columns stay in
the first-level cache while x is read from the second. Denormal numbers count as zero.

Legend: x [M, K] times weight [N, K] transposed; K is a multiple of 32.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float
from llvmlite import ir

from kanawa_backends_cpu.kernels.matmul.available import DOTS_CHUNK, DOTS_COLUMNS
from kanawa_backends_cpu.kernels.matmul.native_amx import GROUP
from kanawa_backends_cpu.kernels.matmul.native_pairs import add_pairs, as_pairs
from kanawa_backends_cpu.native.calls import NativeCall, Operands, helper_threads
from kanawa_backends_cpu.native.code import F32, I16, I32, I64, Code, f32_constant, f32_vector, i64

#: With DOTS_COLUMNS a tile's sums fill 24 of 32 registers.
_TILE_ROWS = 3
#: Columns whose weights a tile prefetches.
_AHEAD = 3
#: Rows of an item: x's part of it stays in the second-level cache.
_BLOCK_ROWS = 96
#: Items for each thread, so that none waits long for the last.
_ITEMS_PER_THREAD = 4
_X, _WEIGHT, _BLOCKS, _RESULT = 0, 1, 2, 3
_SUMS = f32_vector(GROUP)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Rows, columns and contracted numbers; rows and columns of an item; items down and across."""

    m: ir.Value
    n: ir.Value
    k: ir.Value
    rows: ir.Value
    columns: ir.Value
    down: ir.Value
    across: ir.Value

    @classmethod
    def of(cls, code: Code, buffers: Operands) -> "_Sizes":
        builder = code.builder
        m, k, n = buffers.size(_X, 0), buffers.size(_X, 1), buffers.size(_WEIGHT, 0)
        rows, columns = (
            code.max(builder.sext(code.load(code.gep(buffers.data[_BLOCKS], i64(i), I32), I32), I64), i64(1))
            for i in range(2)
        )
        down, across = (
            builder.sdiv(builder.add(size, builder.sub(each, i64(1))), each) for size, each in ((m, rows), (n, columns))
        )
        return cls(m, n, k, rows, columns, down, across)


def _count_items(code: Code, buffers: Operands) -> ir.Value:
    sizes = _Sizes.of(code, buffers)
    return code.builder.mul(sizes.down, sizes.across)


def _emit_item(bf16_result: bool, code: Code, buffers: Operands, item: ir.Value) -> None:
    builder, sizes = code.builder, _Sizes.of(code, buffers)
    # Neighbours in the list share columns: both cores read the same weights at a time.
    row = builder.mul(builder.srem(item, sizes.down), sizes.rows)
    column = builder.mul(builder.sdiv(item, sizes.down), sizes.columns)
    last_row, last_column = (
        code.min(builder.add(at, each), size)
        for at, each, size in ((row, sizes.rows, sizes.m), (column, sizes.columns, sizes.n))
    )

    def columns(at: ir.Value) -> None:
        # The last tile may begin among the columns of the one before, and computes the same numbers again.
        first = code.min(at, builder.sub(sizes.n, i64(DOTS_COLUMNS)))
        code.loop(
            row, last_row, _TILE_ROWS, functools.partial(_emit_tile, bf16_result, code, buffers, sizes, row, first)
        )

    code.loop(column, last_column, DOTS_COLUMNS, columns)


def _emit_tile(
    bf16_result: bool,
    code: Code,
    buffers: Operands,
    sizes: _Sizes,
    begin_row: ir.Value,
    column: ir.Value,
    row: ir.Value,
) -> None:
    builder, kind = code.builder, I16 if bf16_result else F32
    # Rows beyond the last repeat it.
    lines = [code.min(builder.add(row, i64(i)), builder.sub(sizes.m, i64(1))) for i in range(_TILE_ROWS)]
    xs = [code.gep(buffers.data[_X], builder.mul(line, sizes.k), I16) for line in lines]
    weights = [
        code.gep(buffers.data[_WEIGHT], builder.mul(builder.add(column, i64(j)), sizes.k), I16)
        for j in range(DOTS_COLUMNS)
    ]
    sums = [[code.alloca(_SUMS) for _ in weights] for _ in xs]
    for each in sums:
        for variable in each:
            builder.store(f32_constant(0.0, GROUP), variable)

    # While the first tiles are computed, the weights of the next columns come from memory.
    begun = builder.sdiv(builder.sub(row, begin_row), i64(_TILE_ROWS))
    ahead = [
        code.min(builder.add(builder.mul(begun, i64(_AHEAD)), i64(i)), i64(DOTS_COLUMNS - 1)) for i in range(_AHEAD)
    ]
    nexts = [code.gep(weights[0], builder.mul(builder.add(i, i64(DOTS_COLUMNS)), sizes.k), I16) for i in ahead]

    def chunk(k: ir.Value) -> None:
        for following in nexts:
            code.prefetch(code.gep(following, k, I16))
        lefts = [as_pairs(code, _load(code, x, k)) for x in xs]
        for j, weight in enumerate(weights):
            right = as_pairs(code, _load(code, weight, k))
            for left, each in zip(lefts, sums, strict=True):
                add_pairs(code, each[j], left, right)

    code.loop(i64(0), sizes.k, DOTS_CHUNK, chunk)
    flat = [builder.load(variable, typ=_SUMS) for each in sums for variable in each]
    for begin in range(0, len(flat), GROUP):
        totals = _sums_of_lanes(code, flat[begin : begin + GROUP])
        numbers = code.f32_to_bf16(totals) if bf16_result else totals
        for half in range(0, min(GROUP, len(flat) - begin), DOTS_COLUMNS):
            mask = ir.Constant(ir.VectorType(I32, DOTS_COLUMNS), list(range(half, half + DOTS_COLUMNS)))
            line = lines[(begin + half) // DOTS_COLUMNS]
            to = code.gep(buffers.data[_RESULT], builder.add(builder.mul(line, sizes.n), column), kind)
            builder.store(builder.shuffle_vector(numbers, numbers, mask), to, align=2 if bf16_result else 4)


def _load(code: Code, pointer: ir.Value, k: ir.Value) -> ir.Value:
    return code.builder.load(code.gep(pointer, k, I16), typ=ir.VectorType(I32, GROUP), align=2)


def _sums_of_lanes(code: Code, vectors: list[ir.Value]) -> ir.Value:
    """Returns a vector of the sums of the lanes of 8 or 16 vectors; those of 8 are in its first half.

    Two vectors are folded into one, as often as there are two; then the one with itself.
    """
    for distance in (1, 2, 4, 8):
        # Lanes whose number has the bit are of the second vector.
        second = [GROUP if lane & distance else 0 for lane in range(GROUP)]
        straight, crossed = (
            ir.Constant(ir.VectorType(I32, GROUP), [which + (lane ^ swap) for lane, which in enumerate(second)])
            for swap in (0, distance)
        )
        pairs = zip(vectors[::2], vectors[1::2] or vectors, strict=True)
        vectors = [
            code.add(code.builder.shuffle_vector(*pair, straight), code.builder.shuffle_vector(*pair, crossed))
            for pair in pairs
        ]
    return vectors[0]


@functools.cache
def _native_call(bf16_result: bool) -> NativeCall:
    body = functools.partial(_emit_item, bf16_result)
    return NativeCall("matmul_dots", body, _count_items, operands=3, results=1)


def choose_blocks(rows: int, columns: int) -> tuple[int, int]:
    """Returns the rows and columns of an item."""
    down = -(-rows // _BLOCK_ROWS)
    across = -(-_ITEMS_PER_THREAD * (helper_threads() + 1) // down)
    return (
        -(-rows // (down * _TILE_ROWS)) * _TILE_ROWS,
        max(1, -(-columns // (across * DOTS_COLUMNS))) * DOTS_COLUMNS,
    )


def call(
    x: BFloat16[Array, "M K"], weight: BFloat16[Array, "N K"], *, dtype: jax.typing.DTypeLike
) -> Float[Array, "M N"]:
    """Returns x @ weight.T in `dtype`, float32 or bfloat16, without derivatives; sums are float32.

    K is a multiple of 32, and N at least 8.
    """
    block = np.asarray(choose_blocks(x.shape[0], weight.shape[0]), np.int32)
    result = [jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), dtype)]
    out: Array
    (out,) = _native_call(np.dtype(dtype) == jnp.bfloat16)(result, x, weight, block)
    return out
