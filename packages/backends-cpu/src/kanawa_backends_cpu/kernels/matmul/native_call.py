"""Calls of native matmuls: the variant that suits the processor, and the blocks that a result is cut into."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from llvmlite import ir

from kanawa_backends_cpu.kernels.matmul import native_amx, native_code, native_pairs
from kanawa_backends_cpu.kernels.matmul.native_code import Variant
from kanawa_backends_cpu.native.calls import NativeCall, Operands, helper_threads
from kanawa_backends_cpu.native.code import Code
from kanawa_backends_cpu.processor import has_amx_tiles, has_bf16_pairs, processor

#: For processors without known vector registers, which no kernel calls it on.
_REGISTERS = (4, 4)
#: What a tile's loads of the left operand cost, in multiplications of a vector a row.
_LEFT_LOADS = 0.5


def choose_vectors(lanes: int, most: int, columns: int) -> int:
    """Returns how many vectors wide a tile is, so that few columns beyond the result's last are computed."""
    return min(range(most, 0, -1), key=lambda count: -(-columns // (count * lanes)) * (count + _LEFT_LOADS))


def choose_blocks(variant: Variant, sizes: tuple[int, int, int], batch: int) -> tuple[int, int, int]:
    """Returns the rows and columns of a block with which all threads finish first, and its part of K."""
    threads = helper_threads() + 1
    m, n, k = sizes

    def candidates(size: int, unit: int, largest: int) -> list[int]:
        """Returns sizes of a block: for the fewest even parts that fit, and for up to four times as many."""
        fewest = -(-size // largest)
        return sorted({-(-size // (count * unit)) * unit for count in range(fewest, 4 * fewest + 1)})

    def cost(block: tuple[int, ...]) -> int:
        count = batch * -(-m // block[0]) * -(-n // block[1])
        # Packing a number takes about as long as eight multiplications; the last round may leave threads idle.
        return -(-count // threads) * (block[0] * block[1] + 8 * (block[0] + block[1]))

    rows, columns = min(itertools.product(*map(candidates, (m, n), variant.tile, variant.max_block)), key=cost)
    parts = -(-k // variant.depth)
    return rows, columns, -(-k // (parts * variant.depth_unit)) * variant.depth_unit


@functools.cache
def _native_call(variant: Variant) -> NativeCall:
    emitter = native_pairs if variant.pairs else native_amx if variant.amx else native_code

    def count_items(code: Code, buffers: Operands) -> ir.Value:
        return native_code.emit_blocking(variant, code, buffers).total

    return NativeCall("matmul", functools.partial(emitter.emit_block, variant), count_items, operands=3, results=1)


def call(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: jax.typing.DTypeLike,
) -> Float[Array, "..."]:
    """Returns a @ b over equal leading dimensions, either one transposed in its last two, without derivatives.

    Both are float32 or both bfloat16, and neither is empty; `dtype` is the result's: float32 or theirs. Sums are
    float32.
    """
    m, k = a.shape[-2:] if not transpose_a else a.shape[:-3:-1]
    n = b.shape[-2 if transpose_b else -1]
    batch = a.size // (m * k)
    in_bf16 = a.dtype == jnp.bfloat16
    has_tiles, has_pairs = in_bf16 and has_amx_tiles(), in_bf16 and has_bf16_pairs()
    lanes, vectors = processor().vector_registers or _REGISTERS
    variant = Variant(
        transpose_a,
        transpose_b,
        in_bf16,
        np.dtype(dtype) == jnp.bfloat16,
        lanes,
        vectors if has_tiles or has_pairs else choose_vectors(lanes, vectors, n),
        has_tiles,
        has_pairs,
    )
    # The code reads block sizes from memory: one function for all shapes.
    block = np.asarray(choose_blocks(variant, (m, n, k), batch), np.int32)
    result = [jax.ShapeDtypeStruct((batch, m, n), dtype)]
    out: Array
    (out,) = _native_call(variant)(result, a.reshape(batch, *a.shape[-2:]), b.reshape(batch, *b.shape[-2:]), block)
    return out.reshape(*a.shape[:-2], m, n)
