"""Matrix products on a CPU by oneDNN, which jaxlib for x86 Linux holds and XLA doesn't call by itself.

XLA's own products copy an operand that is to be transposed, and widen bfloat16 to float32 first. oneDNN reads either
order in place and uses the processor's bfloat16 units: a product of 4096 x 512 x 1536 in bfloat16 took 3.5 ms here and
21 by XLA; its gradients' products in float32 take as long as the product itself.

`kanawa.arrays.products` says where it is used. jaxlib can't serialize a program that holds the call.
"""

import functools
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

_TARGET = "__onednn$matmul"
#: Without one of these oneDNN's bfloat16 is slower than XLA's.
_BF16_UNITS = frozenset({"avx512_bf16", "amx_bf16"})


@functools.cache
def available() -> bool:
    """Returns whether the installed jaxlib has oneDNN's product for this processor, found by one small call.

    The call's name and its config aren't documented: where either changes, products are XLA's.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    left, right = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(20, dtype=np.float32).reshape(4, 5)
    device = jax.local_devices(backend="cpu")[0]
    try:
        # It may be asked while something is traced, whose trace the call must not become part of.
        with jax.default_device(device), jax.ensure_compile_time_eval():
            given = jax.jit(functools.partial(call, transpose_a=True))(left, right)
            return bool(np.array_equal(np.asarray(given), left.T @ right))
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
    output_layout: tuple[int, ...] | None = None,
) -> Array:
    """Returns the product by the bare call, without derivatives; `dtype` is the result's, float32 or the operands'.

    Layouts are dimensions from major to minor: strided operands are read where they lie.
    """
    config = f'{{"onednn_matmul_config":{{"transpose_a":{_json(transpose_a)},"transpose_b":{_json(transpose_b)}}}}}'
    product_shape = shape(a.shape, b.shape, transpose_a=transpose_a, transpose_b=transpose_b)
    layouts: dict[str, Any] = {} if input_layouts is None else {"input_layouts": list(input_layouts)}
    if output_layout is not None:
        layouts["output_layouts"] = output_layout
    result = jax.ShapeDtypeStruct(product_shape, a.dtype if dtype is None else dtype)
    # The version of custom calls with which XLA's own passes write it.
    product = jax.ffi.ffi_call(
        _TARGET,
        result,
        custom_call_api_version=1,
        legacy_backend_config=config,
        # Leading dimensions are all the same to it.
        vmap_method="broadcast_all",
        **layouts,
    )
    return product(a, b)


def _json(value: bool) -> str:
    return "true" if value else "false"


def shape(
    a: tuple[int, ...], b: tuple[int, ...], *, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[int, ...]:
    """Returns the shape of a product; `ValueError` where there is none."""
    rows, inner = a[-2:] if not transpose_a else a[:-3:-1]
    contracted, columns = b[-2:] if not transpose_b else b[:-3:-1]
    if a[:-2] != b[:-2] or inner != contracted:
        how = f"{'transposed ' * transpose_a}{a} @ {'transposed ' * transpose_b}{b}"
        message = f"no product {how}: leading dimensions and the contracted one have to be equal"
        raise ValueError(message)
    return (*a[:-2], rows, columns)


@functools.cache
def has_bf16_units() -> bool:
    """Returns whether this processor multiplies bfloat16 by itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _BF16_UNITS.isdisjoint(flags)
