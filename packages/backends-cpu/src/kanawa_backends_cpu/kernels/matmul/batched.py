"""Batches of matmuls for kernels of other operations, such as attention's tiles: forward only."""

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from kanawa_backends_cpu import onednn
from kanawa_backends_cpu.kernels.matmul.available import why_no_native, why_no_onednn


def suits(a: jax.Array, b: jax.Array) -> bool:
    """Returns whether `matmul` takes these operands."""
    if a.dtype != b.dtype or a.dtype.name not in ("float32", "bfloat16") or not a.size * b.size:
        return False
    return why_no_native() is None or why_no_onednn(a.dtype.name) is None


def matmul(a: jax.Array, b: jax.Array, *, transpose_a: bool = False, transpose_b: bool = False) -> jax.Array:
    """Returns a @ b in fp32 over equal leading dimensions, either one transposed in its last two.

    By a native function, else by oneDNN; check with `suits` first. It can't be differentiated.
    """

    @custom_vmap
    def call(a: jax.Array, b: jax.Array) -> jax.Array:
        if why_no_native() is None:
            from kanawa_backends_cpu.kernels.matmul import native_call

            return native_call.call(a, b, transpose_a=transpose_a, transpose_b=transpose_b, dtype=jnp.float32)
        return onednn.call(a, b, transpose_a=transpose_a, transpose_b=transpose_b, dtype=jnp.float32)

    @call.def_vmap
    def _(size: int, mapped: list[bool], a: jax.Array, b: jax.Array) -> tuple[jax.Array, bool]:
        a, b = (
            x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
            for x, is_mapped in zip((a, b), mapped, strict=True)
        )
        return matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b), True

    result: jax.Array = call(a, b)
    return result
