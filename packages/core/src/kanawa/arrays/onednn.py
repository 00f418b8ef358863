"""Matrix products on a CPU by oneDNN, which jaxlib for x86 Linux holds and XLA doesn't call by itself.

XLA's own products copy an operand that is to be transposed, and widen bfloat16 to float32 first. oneDNN reads either
order in place and uses the processor's bfloat16 units: a product of 4096 x 512 x 1536 in bfloat16 took 3.5 ms here and
21 by XLA; its gradients' products in float32 take as long as the product itself.

`ExecutionPlan.onednn` says where it is used: never on more than one device, since the compiler can't split the call.
"""

import functools
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

_TARGET = "__onednn$matmul"
#: Multiplications of the smallest product worth a call. In float32 XLA is quicker by a half where few rows meet a
#: weight, as in decoding, and slower where gradients of many need it transposed.
_SMALLEST = {"float32": 2**26, "bfloat16": 2**20}
#: Of bfloat16 where every step of serving has products of few rows.
_SMALLEST_OF_FEW = 2**16
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


def suits(a: Array, b: Array, multiplications: int, smallest: int | None = None) -> bool:
    """Returns whether a product of these arrays is oneDNN's to do: of one dtype that it is quick in, and not tiny.

    `smallest` is the least number of multiplications, by default that of a projection's product.
    """
    if a.dtype.name not in _SMALLEST or a.dtype != b.dtype:
        return False
    if multiplications < (_SMALLEST[a.dtype.name] if smallest is None else smallest):
        return False
    return a.dtype == jnp.float32 or _has_bf16_units()


def suits_rows(rows: Array, weight: Array, multiplications: int, *, few: bool) -> bool:
    """Returns whether a product of rows with a weight is oneDNN's; `few` says that few rows are asked for at each step.

    A call takes 70 us to set up. In float32 that eats what it gains over XLA with up to 64 rows; in bfloat16, which XLA
    widens first, it doesn't: 8 rows of a 512 x 1536 weight take 0.15 ms and 0.9. A program with the call can't be kept
    on disk, so that training's small products aren't worth it.
    """
    return suits(rows, weight, multiplications, _SMALLEST_OF_FEW if few and rows.dtype == jnp.bfloat16 else None)


def matmul(
    a: Float[Array, "..."], b: Float[Array, "..."], *, transpose_a: bool = False, transpose_b: bool = False
) -> Float[Array, "..."]:
    """Returns a @ b in their dtype over equal leading dimensions, either one transposed in its last two.

    Accumulates in float32. Differentiable in both, in both directions.
    """
    return _matmul.bind(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def is_unbatched_product(primitive: Any, *operands: Any) -> bool:
    """Returns whether an equation is `matmul` of two matrices: to a remat policy what `dot_general` is elsewhere."""
    return primitive is _matmul and all(operand.ndim == 2 for operand in operands)


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
    shape = _shape(a.shape, b.shape, transpose_a, transpose_b)
    layouts: dict[str, Any] = {} if input_layouts is None else {"input_layouts": list(input_layouts)}
    if output_layout is not None:
        layouts["output_layouts"] = output_layout
    result = jax.ShapeDtypeStruct(shape, a.dtype if dtype is None else dtype)
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


def _shape(a: tuple[int, ...], b: tuple[int, ...], transpose_a: bool, transpose_b: bool) -> tuple[int, ...]:
    rows, inner = a[-2:] if not transpose_a else a[:-3:-1]
    contracted, columns = b[-2:] if not transpose_b else b[:-3:-1]
    if a[:-2] != b[:-2] or inner != contracted:
        how = f"{'transposed ' * transpose_a}{a} @ {'transposed ' * transpose_b}{b}"
        message = f"no product {how}: leading dimensions and the contracted one have to be equal"
        raise ValueError(message)
    return (*a[:-2], rows, columns)


@functools.cache
def _has_bf16_units() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _BF16_UNITS.isdisjoint(flags)


# A primitive of its own, for the call has no derivatives, and a custom_vjp would take forward differentiation away.
_matmul = Primitive("kanawa_onednn_matmul")
_matmul.def_impl(functools.partial(jax.jit(call, static_argnames=("transpose_a", "transpose_b"))))


def _abstract(a: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    return jax.core.ShapedArray(_shape(a.shape, b.shape, transpose_a, transpose_b), a.dtype)


_matmul.def_abstract_eval(_abstract)


def _transpose_left(cotangent: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """Returns a's cotangent: dC op(B)^T, or op(B) dC^T where a is read transposed."""
    if transpose_a:
        return matmul(b, cotangent, transpose_a=transpose_b, transpose_b=True)
    return matmul(cotangent, b, transpose_b=not transpose_b)


def _transpose_right(cotangent: Any, a: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """Returns b's cotangent: op(A)^T dC, or dC^T op(A) where b is read transposed."""
    if transpose_b:
        return matmul(cotangent, a, transpose_a=True, transpose_b=transpose_a)
    return matmul(a, cotangent, transpose_a=not transpose_a)


def _linear_in_each(cotangent: Any, a: Any, b: Any, **how: bool) -> tuple[Any, Any]:
    if type(cotangent) is ad.Zero:
        return None, None
    if ad.is_undefined_primal(a):
        return _transpose_left(cotangent, b, **how), None
    return None, _transpose_right(cotangent, a, **how)


def _derivative(primals: tuple[Any, Any], tangents: tuple[Any, Any], **how: bool) -> tuple[Any, Any]:
    a, b = primals
    da, db = tangents
    parts = [_matmul.bind(da, b, **how)] if type(da) is not ad.Zero else []
    parts += [_matmul.bind(a, db, **how)] if type(db) is not ad.Zero else []
    out = _matmul.bind(a, b, **how)
    return out, sum(parts[1:], parts[0])


def _batched(operands: tuple[Any, Any], dims: tuple[Any, Any], **how: bool) -> tuple[Any, int]:
    """Returns the product with the mapped dimension in front of both, or more rows where one matrix serves them all."""
    if dims[0] is not None and dims[1] is None and operands[1].ndim == 2 and not how["transpose_a"]:
        # Broadcast, a weight would be copied for every example.
        a = jnp.moveaxis(operands[0], dims[0], 0)
        out = _matmul.bind(a.reshape(-1, a.shape[-1]), operands[1], **how)
        return out.reshape(*a.shape[:-1], out.shape[-1]), 0
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    a, b = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, dims, strict=True)
    )
    return _matmul.bind(a, b, **how), 0


ad.primitive_jvps[_matmul] = _derivative
ad.primitive_transposes[_matmul] = _linear_in_each
batching.primitive_batchers[_matmul] = _batched
mlir.register_lowering(_matmul, mlir.lower_fun(call, multiple_results=False), platform="cpu")
