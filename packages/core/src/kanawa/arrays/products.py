"""Matrix products of one CPU beside XLA's, with derivatives: by native functions, or by jaxlib's oneDNN without those.

XLA's own products copy an operand that is to be transposed, and widen bfloat16 to float32 first.

Native functions (kanawa.arrays.native) need llvmlite, `pip install "kanawa[cpu]"`. They are as quick as oneDNN, and a
program that calls them can be kept on disk, where jaxlib can't keep one with oneDNN's call. That one stays the quicker
for the few rows of serving. `ExecutionPlan.native_products` says where either is used: never on more than one device,
since the compiler can't split the call.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from kanawa.arrays import onednn
from kanawa.arrays.plan import current_plan

#: Multiplications of the smallest product worth a call. In float32 XLA is quicker by a half where few rows meet a
#: weight, as in decoding, and slower where gradients of many need it transposed.
_SMALLEST = {"float32": 2**26, "bfloat16": 2**20}
#: Of bfloat16 where every step of serving has products of few rows.
_SMALLEST_OF_FEW = 2**16


def available() -> bool:
    """Returns whether this process has products beside XLA's."""
    return has_native() or onednn.available()


@functools.cache
def has_native() -> bool:
    """Returns whether native functions compute products here: llvmlite can be used, and knows the processor."""
    from kanawa.arrays.native import available

    if available.why_not() is not None:
        return False
    from kanawa.arrays.native import products

    return products.registers() is not None


def kept() -> bool:
    """Returns whether programs of training can be kept on disk, as those with native products can."""
    return has_native() or not onednn.available()


def suits(a: Array, b: Array, multiplications: int, smallest: int | None = None) -> bool:
    """Returns whether a product of these arrays is worth a call: of one dtype that it is quick in, and not tiny.

    `smallest` is the least number of multiplications, by default that of a projection's product.
    """
    if a.dtype.name not in _SMALLEST or a.dtype != b.dtype:
        return False
    if multiplications < (_SMALLEST[a.dtype.name] if smallest is None else smallest):
        return False
    if current_plan().purpose != "train" and not onednn.available():
        return False
    return a.dtype == jnp.float32 or _by() == "native" or onednn.has_bf16_units()


def suits_rows(rows: Array, weight: Array, multiplications: int, *, few: bool) -> bool:
    """Returns whether a product of rows with a weight is worth it; `few` says that few rows are asked for at each step.

    A call of oneDNN takes 70 us to set up. In float32 that eats what it gains over XLA with up to 64 rows; in bfloat16,
    which XLA widens first, it doesn't: 8 rows of a 512 x 1536 weight take 0.15 ms and 0.9.
    """
    return suits(rows, weight, multiplications, _SMALLEST_OF_FEW if few and rows.dtype == jnp.bfloat16 else None)


def matmul(
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: Any = None,
) -> Float[Array, "..."]:
    """Returns a @ b over equal leading dimensions, either one transposed in its last two.

    Both are float32 or both bfloat16; `dtype` is the result's, float32 or theirs, by default theirs. Accumulates in
    float32. Differentiable in both, in both directions; a cotangent is rounded to what it meets.
    """
    dtype = jnp.dtype(a.dtype if dtype is None else dtype)
    if a.dtype != b.dtype or a.dtype.name not in _SMALLEST or dtype not in (a.dtype, jnp.float32):
        message = f"no product of {a.dtype} and {b.dtype} in {dtype}: both float32, or both bfloat16 in either"
        raise ValueError(message)
    return _matmul.bind(a, b, transpose_a=transpose_a, transpose_b=transpose_b, dtype=dtype, by=_by())


def is_unbatched_product(primitive: Any, *operands: Any) -> bool:
    """Returns whether an equation is `matmul` of two matrices: to a remat policy what `dot_general` is elsewhere."""
    return primitive is _matmul and all(operand.ndim == 2 for operand in operands)


def _by() -> str:
    """Returns whose products they are."""
    few = current_plan().purpose != "train" and onednn.available()
    return "native" if has_native() and not few else "onednn"


def _computed(a: Array, b: Array, *, by: str, dtype: Any, **how: Any) -> Array:
    # Asked before the call, which would read beyond the end of operands that don't fit.
    shape = onednn.shape(a.shape, b.shape, **how)
    if not a.size * b.size:
        return jnp.zeros(shape, dtype)
    if by == "onednn":
        return onednn.call(a, b, dtype=dtype, **how)
    from kanawa.arrays.native import products

    return products.call(a, b, dtype=dtype, **how)


# A primitive of its own, for the call has no derivatives, and a custom_vjp would take forward differentiation away.
_matmul = Primitive("kanawa_matmul")
_matmul.def_impl(functools.partial(jax.jit(_computed, static_argnames=("transpose_a", "transpose_b", "dtype", "by"))))


def _abstract(a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, dtype: Any, by: str) -> Any:
    del by
    shape = onednn.shape(a.shape, b.shape, transpose_a=transpose_a, transpose_b=transpose_b)
    return jax.core.ShapedArray(shape, dtype)


_matmul.def_abstract_eval(_abstract)


def _transpose_left(cotangent: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """Returns a's cotangent: dC op(B)^T, or op(B) dC^T where a is read transposed."""
    cotangent = cotangent.astype(b.dtype)
    if transpose_a:
        return matmul(b, cotangent, transpose_a=transpose_b, transpose_b=True)
    return matmul(cotangent, b, transpose_b=not transpose_b)


def _transpose_right(cotangent: Any, a: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """Returns b's cotangent: op(A)^T dC, or dC^T op(A) where b is read transposed."""
    cotangent = cotangent.astype(a.dtype)
    if transpose_b:
        return matmul(cotangent, a, transpose_a=True, transpose_b=transpose_a)
    return matmul(a, cotangent, transpose_a=not transpose_a)


def _linear_in_each(cotangent: Any, a: Any, b: Any, *, dtype: Any, by: str, **how: bool) -> tuple[Any, Any]:
    del dtype, by
    if type(cotangent) is ad.Zero:
        return None, None
    if ad.is_undefined_primal(a):
        return _transpose_left(cotangent, b, **how), None
    return None, _transpose_right(cotangent, a, **how)


def _derivative(primals: tuple[Any, Any], tangents: tuple[Any, Any], **how: Any) -> tuple[Any, Any]:
    a, b = primals
    da, db = tangents
    parts = [_matmul.bind(da, b, **how)] if type(da) is not ad.Zero else []
    parts += [_matmul.bind(a, db, **how)] if type(db) is not ad.Zero else []
    out = _matmul.bind(a, b, **how)
    return out, sum(parts[1:], parts[0])


def _batched(operands: tuple[Any, Any], dims: tuple[Any, Any], **how: Any) -> tuple[Any, int]:
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
mlir.register_lowering(_matmul, mlir.lower_fun(_computed, multiple_results=False), platform="cpu")
