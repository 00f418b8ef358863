"""Matrix products by native functions: which code suits the processor, and how a result is cut for its cores."""

import ctypes
import functools
import itertools
import platform
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from llvmlite import binding, ir

from kanawa.arrays.native import product_amx, product_code
from kanawa.arrays.native.calls import NativeCall, Operands, helpers
from kanawa.arrays.native.code import Code
from kanawa.arrays.native.product_code import Product

#: arch_prctl on x86-64, what asks it for a part of the processor's state, and the tiles' part.
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18


@functools.cache
def registers() -> tuple[int, int] | None:
    """Returns the floats of a vector and the vectors of a tile's row that suit this processor; None if none does."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 4
    if features.get("avx2") and features.get("fma"):
        return 8, 2
    return (4, 4) if features.get("neon") else None


def blocks(product: Product, sizes: tuple[int, int, int], batch: int) -> tuple[int, int, int]:
    """Returns a block's rows and columns, those with which all threads are done the soonest, and its part of K."""
    threads = helpers() + 1
    m, n, k = sizes

    def cuts(size: int, unit: int, most: int) -> list[int]:
        """Returns sizes of a block: as many even parts as have to be, or more, up to four times as many."""
        least = -(-size // most)
        return sorted({-(-size // (count * unit)) * unit for count in range(least, 4 * least + 1)})

    def time(block: tuple[int, ...]) -> int:
        count = batch * -(-m // block[0]) * -(-n // block[1])
        # To pack a number takes about as long as eight products; the last ones to come are waited for.
        return -(-count // threads) * (block[0] * block[1] + 8 * (block[0] + block[1]))

    tile, most = product.tile, product.most
    rows, columns = min(itertools.product(*map(cuts, (m, n), tile, most)), key=time)
    parts = -(-k // product.depth)
    return rows, columns, -(-k // (parts * product.depth_unit)) * product.depth_unit


@functools.cache
def has_amx() -> bool:
    """Returns whether this processor has tiles of bfloat16, and the system lets this process use them."""
    features = binding.get_host_cpu_features()
    needed = ("amx-tile", "amx-bf16", "avx512f", "avx512bw", "avx512vl")
    if sys.platform != "linux" or platform.machine() != "x86_64" or not all(features.get(name) for name in needed):
        return False
    # Linux kills a process that uses them unasked. What it starts by fork has them too.
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0


@functools.cache
def _call(product: Product) -> NativeCall:
    write = product_amx.write if product.amx else product_code.write

    def items(code: Code, buffers: Operands) -> ir.Value:
        return product_code.cut(product, code, buffers).total

    return NativeCall("product", functools.partial(write, product), items, operands=3, results=1)


def call(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: Any,
) -> Float[Array, "..."]:
    """Returns a @ b over equal leading dimensions, either one transposed in its last two, without derivatives.

    Both are float32 or both bfloat16, and none is empty; `dtype` is the result's, float32 or theirs. Sums are float32.
    """
    m, k = a.shape[-2:] if not transpose_a else a.shape[:-3:-1]
    n = b.shape[-2 if transpose_b else -1]
    batch = a.size // (m * k)
    halves = a.dtype == jnp.bfloat16
    product = Product(
        transpose_a,
        transpose_b,
        halves,
        np.dtype(dtype) == jnp.bfloat16,
        *(registers() or (4, 4)),
        halves and has_amx(),
    )
    # The code reads it from memory: one function for all shapes.
    block = np.asarray(blocks(product, (m, n, k), batch), np.int32)
    result = [jax.ShapeDtypeStruct((batch, m, n), dtype)]
    (out,) = _call(product)(result, a.reshape(batch, *a.shape[-2:]), b.reshape(batch, *b.shape[-2:]), block)
    return out.reshape(*a.shape[:-2], m, n)
