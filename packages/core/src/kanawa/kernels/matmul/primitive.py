"""The primitive `kanawa_matmul`: a matmul by a chosen kernel, with derivatives and batching of core's own.

A kernel computes the result alone. Gradients are calls of the operation again, each with a kernel of its own. It is a
primitive because a custom_vjp would take forward-mode differentiation away.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from kanawa.kernels.custom_gradient import applied
from kanawa.kernels.matmul.problem import MatmulProblem, dot_precision
from kanawa.kernels.matmul.select import select_matmul
from kanawa.kernels.operation import Kernel


def call_kernel(
    kernel: Kernel, problem: MatmulProblem, x: Float[Array, "..."], weight: Float[Array, "..."]
) -> Float[Array, "rows outputs"]:
    """Returns the result of a kernel, differentiable in both operands in both modes."""
    out: Array = _matmul.bind(x, weight, problem=problem, kernel=kernel)
    return out


def _selected(problem: MatmulProblem, x: Any, weight: Any) -> Any:
    return _matmul.bind(x, weight, problem=problem, kernel=select_matmul(problem).kernel)


def _computed(x: Array, weight: Array, *, problem: MatmulProblem, kernel: Kernel) -> Array:
    out: Array = applied(kernel, problem, {"x": x, "weight": weight})
    return out


_matmul = Primitive("kanawa_matmul")
_matmul.def_impl(functools.partial(jax.jit(_computed, static_argnames=("problem", "kernel"))))


def _abstract(x: Any, weight: Any, *, problem: MatmulProblem, kernel: Kernel) -> Any:
    del x, weight, kernel
    return jax.core.ShapedArray(problem.out_shape, jnp.dtype(problem.dtype))


_matmul.def_abstract_eval(_abstract)


def _derivative(primals: tuple[Any, Any], tangents: tuple[Any, Any], **static: Any) -> tuple[Any, Any]:
    (x, weight), (dx, dweight) = primals, tangents
    parts = [_matmul.bind(dx, weight, **static)] if type(dx) is not ad.Zero else []
    parts += [_matmul.bind(x, dweight, **static)] if type(dweight) is not ad.Zero else []
    out = _matmul.bind(x, weight, **static)
    return out, sum(parts[1:], parts[0])


def _transposed(cotangent: Any, x: Any, weight: Any, *, problem: MatmulProblem, kernel: Kernel) -> tuple[Any, Any]:
    """Returns the cotangent of the operand that is linear, None for the other."""
    del kernel
    if type(cotangent) is ad.Zero:
        return None, None
    if ad.is_undefined_primal(x):
        pair = (cotangent, weight) if problem.x_layout == "rows_first" else (weight, cotangent)
        return _selected(problem.x_gradient(), *pair), None
    pair = (x, cotangent) if problem.weight_layout == "inner_first" else (cotangent, x)
    return None, _selected(problem.weight_gradient(), *pair)


def _batched(
    operands: tuple[Any, Any], dims: tuple[Any, Any], *, problem: MatmulProblem, kernel: Kernel
) -> tuple[Any, int]:
    """Returns the result of mapped operands: with one weight for all of them they are more rows of one matmul."""
    del kernel
    (x, weight), (x_dim, weight_dim) = operands, dims
    if weight_dim is None and problem.x_layout == "rows_first":
        x = jnp.moveaxis(x, x_dim, 0)
        size = x.shape[0]
        folded = dataclasses.replace(problem, rows=size * problem.rows)
        out = _selected(folded, x.reshape(-1, problem.inner), weight)
        return out.reshape(size, *problem.out_shape), 0
    # Weights that differ, as under a vmap over models, are a batch of matmuls, which no kernel is asked about.
    x_batched, weight_batched = x_dim is not None, weight_dim is not None
    x = jnp.moveaxis(x, x_dim, 0) if x_batched else x
    weight = jnp.moveaxis(weight, weight_dim, 0) if weight_batched else weight
    (x_inner,), (weight_inner,) = problem.contraction
    contracted = (x_batched + x_inner,), (weight_batched + weight_inner,)
    batch = ((0,), (0,)) if x_batched and weight_batched else ((), ())
    out = jax.lax.dot_general(
        x,
        weight,
        (contracted, batch),
        precision=dot_precision(problem.precision),
        preferred_element_type=problem.sum_dtype,
    ).astype(problem.dtype)
    # Without a batch of both, the result's dimensions are x's that are left, and then the weight's.
    return out, 0 if x_batched else 1


ad.primitive_jvps[_matmul] = _derivative
ad.primitive_transposes[_matmul] = _transposed
batching.primitive_batchers[_matmul] = _batched
mlir.register_lowering(_matmul, mlir.lower_fun(_computed, multiple_results=False))
