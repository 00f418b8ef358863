"""RMSNorm: rows scaled to root mean square 1, times a scale for each channel (arXiv:1910.07467)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.broadcast import along_last
from kanawa.errors import KernelError
from kanawa.kernels.bad_input import not_floats, outside, refuse_bad_input
from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel, wide
from kanawa.kernels.run import run
from kanawa.kernels.selection import select
from kanawa.kernels.sharded import split_operands

_ROWS: tuple[LogicalAxes, ...] = (("batch",), ("batch", "length"), ("batch", "length", "heads"))


def _operation(rows: LogicalAxes) -> Operation:
    # Channels stay whole: their mean is over all of them. Compilers fuse it well, so that a kernel is no must anywhere.
    return Operation(
        name="rms_norm",
        operand_axes={"x": (*rows, None), "scale": (None,)},
        output_axes=((*rows, None),),
        expects_fused=False,
    )


#: The operation by the number of dimensions of x, whose first ones are rows.
RMS_NORM: Mapping[int, Operation] = {len(rows) + 1: _operation(rows) for rows in _ROWS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNormProblem(Problem):
    """`rows` of `width` channels each, in `dtype`; statistics and product are fp32, the scale too."""

    rows: int
    width: int
    dtype: str
    eps: float

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[8192,4096] eps=1e-06"."""
        return f"{self.dtype}[{self.rows},{self.width}] eps={self.eps:g}"

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "RMSNormProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        return dataclasses.replace(self, rows=math.prod(operand_shapes["x"][:-1]))

    def result(self, operands: Operands) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of x."""
        return jax.ShapeDtypeStruct(operands["x"].shape, operands["x"].dtype)


class ReferenceRMSNorm(UniversalKernel):
    """rms_norm.any.reference: statistics and product in fp32, differentiated by JAX. Supports every problem."""

    name: ClassVar[str] = "rms_norm.any.reference"
    operation: ClassVar[str] = "rms_norm"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: RMSNormProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (x / rms(x) * scale in x's dtype, None)."""
        x, scale = operands["x"], operands["scale"]
        sums = wide(x.dtype)
        x32 = x.astype(sums)
        # x * x, not jnp.square: the latter keeps 2 x for the backward pass, an array more a norm.
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        y = x32 * jax.lax.rsqrt(mean_square + problem.eps)
        # Llama's reference rounds to x's dtype before the scale, Gemma's after it. Before it loses bits for nothing,
        # and in fp32 both are the same.
        return (y * along_last(scale.astype(sums), x.ndim)).astype(x.dtype), None


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
    operation = RMS_NORM.get(x.ndim)
    out: jax.Array
    if operation is not None:
        # Of one shard's rows: a kernel that the plan pins may refuse all of them, and be asked for fewer.
        split = split_operands(operation, operation.operand_axes, operands)
        alone = select(operation, problem.localize(split.shapes), split.error)
        if alone.choice.kernel != _REFERENCE.name or alone.choice.refused:
            out = run(operation, problem, operands)
            return out
    # Rows that no rule names can't be split for a kernel that runs on a shard. And every layer has norms: where nothing
    # but the reference is installed there is no choice to record, and a model's list of kernels stays short.
    out = _REFERENCE.apply(problem, operands)
    return out
