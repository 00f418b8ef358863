"""Matmuls by oneDNN, which jaxlib for x86 Linux contains and XLA doesn't call by itself.

XLA's own matmuls copy a transposed operand, and convert bfloat16 to float32 first. oneDNN reads either layout in place
and uses the processor's bfloat16 units: a matmul of 4096 x 512 x 1536 in bfloat16 took 3.5 ms, and 21 ms by XLA.

jaxlib can't serialize a program that contains the call, so the compile cache doesn't store it.
"""

import functools
import platform
import sys
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

_TARGET = "__onednn$matmul"


@functools.cache
def available() -> bool:
    """Returns whether the installed jaxlib has oneDNN's matmul for this processor; runs one small call.

    The call's name and its config aren't documented: if either changes, it isn't available.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    left, right = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(20, dtype=np.float32).reshape(4, 5)
    device = jax.local_devices(backend="cpu")[0]
    try:
        # It may run while something is traced; the call must not become part of that trace.
        with jax.default_device(device), jax.ensure_compile_time_eval():
            result = jax.jit(functools.partial(call, transpose_a=True))(left, right)
            return bool(np.array_equal(np.asarray(result), left.T @ right))
    except jax.errors.JaxRuntimeError:
        return False


def call(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: Any = None,
    input_layouts: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> Array:
    """Returns a @ b over equal leading dimensions, without derivatives; `dtype` is the result's: float32 or theirs.

    Layouts list dimensions from major to minor: strided operands are read in place.
    """
    config = f'{{"onednn_matmul_config":{{"transpose_a":{_json(transpose_a)},"transpose_b":{_json(transpose_b)}}}}}'
    result_shape = matmul_shape(a.shape, b.shape, transpose_a=transpose_a, transpose_b=transpose_b)
    layouts: dict[str, Any] = {} if input_layouts is None else {"input_layouts": list(input_layouts)}
    result = jax.ShapeDtypeStruct(result_shape, a.dtype if dtype is None else dtype)
    # XLA's own passes emit the call with this version of custom calls.
    matmul = jax.ffi.ffi_call(
        _TARGET,
        result,
        custom_call_api_version=1,
        legacy_backend_config=config,
        # It takes any leading dimensions.
        vmap_method="broadcast_all",
        **layouts,
    )
    matmul_result: Array = matmul(a, b)
    return matmul_result


def _json(value: bool) -> str:
    return "true" if value else "false"


def matmul_shape(
    a: tuple[int, ...], b: tuple[int, ...], *, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[int, ...]:
    """Returns the shape of a matmul's result; raises ValueError for operands that don't fit."""
    rows, inner = a[-2:] if not transpose_a else a[:-3:-1]
    contracted, columns = b[-2:] if not transpose_b else b[:-3:-1]
    if a[:-2] != b[:-2] or inner != contracted:
        how = f"{'transposed ' * transpose_a}{a} @ {'transposed ' * transpose_b}{b}"
        message = f"no matmul {how}: leading dimensions and the contracted one have to be equal"
        raise ValueError(message)
    return (*a[:-2], rows, columns)
