"""The public call: checks shapes, makes the problem, and runs the best kernel."""

import math

import jax

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import not_floats, outside, refuse_bad_input
from kanawa.kernels.rms_norm.problem import RMS_NORM, RMSNormProblem
from kanawa.kernels.rms_norm.reference import ReferenceRMSNorm
from kanawa.kernels.run import run
from kanawa.kernels.selection import select
from kanawa.kernels.sharded import split_operands

_REFERENCE = ReferenceRMSNorm()


def rms_norm(x: jax.Array, scale: jax.Array, *, eps: float) -> jax.Array:
    """Returns x / sqrt(mean(x * x) + eps) * scale over the last axis, computed in fp32, in the dtype of x.

    Args:
        x: float [..., E]; up to four dimensions are rows as batch, length and heads.
        scale: float32 [E].
        eps: what is added to the mean square.

    Differentiable in x and scale. Raises KernelError where shapes don't fit together, dtypes aren't floating-point
    or eps isn't a number of at least 0.
    """
    if x.ndim < 1 or scale.shape != x.shape[-1:]:
        message = f"rms_norm: x {x.shape}, scale {scale.shape}; expected [..., E] and [E]"
        raise KernelError(message)
    broken = not_floats({"x": x, "scale": scale}, ("x", "scale")) + outside(0.0, math.inf, eps=eps)
    refuse_bad_input("rms_norm", broken)
    problem = RMSNormProblem(rows=math.prod(x.shape[:-1]), width=x.shape[-1], dtype=str(x.dtype), eps=float(eps))
    operands = {"x": x, "scale": scale}
    # Rows that no rule names can't be split for a kernel that runs on a shard.
    operation = RMS_NORM.get(x.ndim)
    out: jax.Array
    if operation is None:
        out = _REFERENCE.apply(problem, operands)
        return out
    # Of one shard's rows: a kernel that the plan pins may refuse all of them, and be asked for fewer.
    split = split_operands(operation, operation.operand_axes, operands)
    alone = select(operation, problem.localize(split.shapes), split.error)
    if alone.choice.kernel == _REFERENCE.name and not alone.choice.refused:
        # Every layer has norms: where nothing but the reference is installed there is no choice to record, and a
        # model's list of kernels stays short.
        out = _REFERENCE.apply(problem, operands)
    else:
        out = run(operation, problem, operands)
    return out
