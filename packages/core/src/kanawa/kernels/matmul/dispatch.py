"""The public call: checks shapes, makes the problem, and runs the best kernel."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kanawa.arrays.plan import current_plan
from kanawa.errors import KernelError
from kanawa.kernels.matmul.problem import MATMUL, MatmulProblem, Precision, WeightLayout, dot_precision
from kanawa.kernels.matmul.select import by_reference_alone, only_reference, recorded_choices, select_matmul
from kanawa.kernels.platform import mesh_error
from kanawa.kernels.selection import preferred_problem
from kanawa.module.context import find_context, record_kernel
from kanawa.plugins.records import Purpose


def matmul(
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    num_contracted: int = 1,
    *,
    inner_first: bool = False,
    outputs_first: bool = False,
    dtype: Any = None,
    sum_dtype: Any = None,
    precision: Precision = "default",
    logits: bool = False,
    own_gradients: bool = True,
) -> Float[Array, "..."]:
    """Returns [*rows, *outputs]: x contracted with a weight over `num_contracted` dimensions of each.

    Args:
        x: [*rows, *inner], or [*inner, *rows] where `inner_first`.
        weight: [*inner, *outputs], or [*outputs, *inner] where `outputs_first`.
        num_contracted: the number of inner dimensions.
        dtype: of the result; by default `sum_dtype`, else what the operands promote to.
        sum_dtype: the narrowest dtype that sums may be rounded to; by default that of the result.
        precision: "highest" multiplies fp32 operands in fp32, where a device would otherwise round them.
        logits: whether the outputs are a vocabulary's logits, or their gradients.
        own_gradients: whether a manifest of training lists the gradients of this call; False for a caller that computes
            them itself.

    Differentiable in both operands, in both modes. Where the reference is chosen it is exactly one `dot_general`.
    Raises KernelError where shapes don't fit together or no kernel applies.
    """
    n = num_contracted
    x_inner, rows = (x.shape[:n], x.shape[n:]) if inner_first else (x.shape[x.ndim - n :], x.shape[: x.ndim - n])
    split = weight.ndim - n
    outputs, w_inner = (weight.shape[:split], weight.shape[split:]) if outputs_first else _split(weight.shape, n)
    if not 0 < n <= min(x.ndim, weight.ndim) or x_inner != w_inner:
        message = (
            f"matmul: x {x.shape}{' inner first' * inner_first} and weight {weight.shape}"
            f"{' outputs first' * outputs_first} don't share {n} contracted dimension{'s' * (n != 1)}"
        )
        raise KernelError(message)
    summed = None if sum_dtype is None and dtype is None else jnp.dtype(dtype if sum_dtype is None else sum_dtype)
    result = jnp.dtype(dtype) if dtype is not None else summed
    how = {"precision": dot_precision(precision), "preferred_element_type": summed}
    contracted = (
        tuple(range(n) if inner_first else range(x.ndim - n, x.ndim)),
        tuple(range(split, weight.ndim) if outputs_first else range(n)),
    )
    direct = only_reference() or not x.size * weight.size
    if not direct:
        promoted = jnp.promote_types(x.dtype, weight.dtype)
        problem = MatmulProblem(
            rows=math.prod(rows),
            inner=math.prod(w_inner),
            outputs=math.prod(outputs),
            x_dtype=str(x.dtype),
            weight_dtype=str(weight.dtype),
            sum_dtype=str(summed or promoted),
            dtype=str(result or promoted),
            x_layout="inner_first" if inner_first else "rows_first",
            weight_layout="outputs_first" if outputs_first else "inner_first",
            precision=precision,
            purpose=current_plan().purpose,
            logits=logits,
            row_invariant=current_plan().row_invariant,
        )
        _record(problem, own_gradients)
        direct = by_reference_alone(problem)
    if direct:
        # Of whatever rank the operands are: the program has one dot and no reshapes.
        out = jax.lax.dot_general(x, weight, (contracted, ((), ())), **how)
        return out if result is None else out.astype(result)
    out = _by_kernel(problem, x.reshape(problem.x_shape), weight.reshape(problem.weight_shape))
    return out.reshape(*rows, *outputs)


def is_matmul(primitive: Any) -> bool:
    """Returns whether an equation's primitive is a call of this operation by a kernel, on two matrices."""
    # By its name, without importing the primitive.
    return bool(primitive.name == "kanawa_matmul")


def preferred_weight_layout(
    rows: int, inner: int, outputs: int, *, dtype: Any, purpose: Purpose | None = None
) -> WeightLayout:
    """Returns the layout of a weight that the best kernel here would rather multiply `rows` with.

    For callers that are free to store weights as they like; `purpose` is by default that of the plan in force.
    """
    name = str(jnp.dtype(dtype))
    problem = MatmulProblem(
        rows=rows,
        inner=inner,
        outputs=outputs,
        x_dtype=name,
        weight_dtype=name,
        sum_dtype=name,
        dtype=name,
        purpose=purpose or current_plan().purpose,
        row_invariant=current_plan().row_invariant,
    )
    preferred: MatmulProblem = preferred_problem(MATMUL, problem, mesh_error())
    return preferred.weight_layout


def _split(shape: tuple[int, ...], count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the dimensions after the first `count`, and those."""
    return shape[count:], shape[:count]


def _record(problem: MatmulProblem, own_gradients: bool) -> None:
    context = find_context()
    if context is not None:
        # The backward pass runs where no module does, so that its calls are recorded here.
        for choice in recorded_choices(problem, gradients=context.train and own_gradients):
            record_kernel(choice)


def _by_kernel(problem: MatmulProblem, x: Array, weight: Array) -> Array:
    # Here: importing it takes longer than all of this package.
    from kanawa.kernels.matmul.primitive import call_kernel

    return call_kernel(select_matmul(problem).kernel, problem, x, weight)
