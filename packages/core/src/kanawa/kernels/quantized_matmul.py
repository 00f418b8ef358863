"""Matmul of operands stored in a format of few bits, with their scales."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kanawa.kernels.bad_input import first_bad, not_floats, refuse_bad_input, values
from kanawa.kernels.matmul import matmul
from kanawa.kernels.number_formats import FORMATS, check_groups, format_named, scaled_rhs
from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel, wide
from kanawa.kernels.run import run

#: Operands have any dimensions, so the compiler splits the matmul over the mesh; a kernel that it can't split has to be
#: called inside shard_map.
QUANTIZED_MATMUL = Operation(
    name="quantized_matmul",
    operand_axes={"lhs": (), "rhs": (), "lhs_scale": (), "rhs_scale": ()},
    output_axes=((),),
    manual_axes=(),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedMatmulProblem(Problem):
    """lhs [*rows, *contracted] times rhs [*contracted, *columns].

    Attributes:
        lhs_shape, rhs_shape: shapes of the values, unpacked.
        num_contracted: how many dimensions are contracted.
        groups: scales along the first contracted dimension of rhs.
        lhs_format: a dtype's name where lhs isn't quantised, else a format's.
        rhs_format: the format of rhs.
        dtype: of the output.
    """

    lhs_shape: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    num_contracted: int
    groups: int
    lhs_format: str
    rhs_format: str
    dtype: str

    @property
    def matmul_flops(self) -> float:
        """FLOPs of the matmul."""
        rows = self.lhs_shape[: len(self.lhs_shape) - self.num_contracted]
        return 2.0 * math.prod(rows) * math.prod(self.rhs_shape)

    def describe(self) -> str:
        """Returns one line, such as "int8[8,4096,2048] x int8[2048,7168] -> bfloat16"."""
        left = ",".join(map(str, self.lhs_shape))
        right = ",".join(map(str, self.rhs_shape))
        over = f" over {self.num_contracted} dimensions" if self.num_contracted > 1 else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{self.lhs_format}[{left}] x {self.rhs_format}[{right}]{over}{groups} -> {self.dtype}"

    def result(self, operands: Operands) -> jax.ShapeDtypeStruct:
        """Returns [*rows, *columns] in the output's dtype."""
        del operands
        rows = self.lhs_shape[: len(self.lhs_shape) - self.num_contracted]
        return jax.ShapeDtypeStruct((*rows, *self.rhs_shape[self.num_contracted :]), jnp.dtype(self.dtype))


class ReferenceQuantizedMatmul(UniversalKernel):
    """quantized_matmul.any.reference: one dot, and scales outside of it where they can be.

    Integers accumulate in int32, all else in fp32. Differentiable in an lhs that isn't quantised, only.
    """

    name: ClassVar[str] = "quantized_matmul.any.reference"
    operation: ClassVar[str] = "quantized_matmul"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: QuantizedMatmulProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [*rows, *columns], None)."""
        p, lhs = problem, operands["lhs"]
        scale = jax.lax.stop_gradient(operands["rhs_scale"])
        rhs, outside = self._right(p, lhs, operands["rhs"], scale)
        floats = wide(p.dtype)
        if p.lhs_format in FORMATS:
            dims = (tuple(range(lhs.ndim - p.num_contracted, lhs.ndim)), tuple(range(p.num_contracted)))
            exact = jnp.dtype("int32") if lhs.dtype == jnp.int8 else floats
            out = jax.lax.dot_general(lhs, rhs, (dims, ((), ())), preferred_element_type=exact).astype(floats)
        else:
            # Only the weight is quantised: a matmul with dense values.
            out = matmul(lhs, rhs, p.num_contracted, dtype=floats)
        if outside is not None:
            out = out * outside.astype(floats).reshape((1,) * (lhs.ndim - p.num_contracted) + outside.shape[1:])
        if "lhs_scale" in operands:
            left = jax.lax.stop_gradient(operands["lhs_scale"])
            out = out * left.astype(floats).reshape(left.shape + (1,) * (rhs.ndim - p.num_contracted))
        return out.astype(p.dtype), None

    def _right(
        self, p: QuantizedMatmulProblem, lhs: jax.Array, rhs: jax.Array, scale: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the right operand of the dot, and the scale that is left to apply to its result."""
        fmt = format_named(p.rhs_format)
        if p.lhs_format in FORMATS:
            return rhs, scale
        # Float8 is a floating dtype to JAX, which would otherwise derive by it; codes have no gradient.
        rhs = jax.lax.stop_gradient(rhs) if jnp.issubdtype(rhs.dtype, jnp.floating) else rhs
        values = fmt.values(rhs, p.rhs_shape[0], wide(lhs.dtype))
        if p.groups == 1 and not fmt.levels:
            # Integers and eight-bit floats are exact in any wider float: scale the result instead.
            return values.astype(lhs.dtype), scale
        return scaled_rhs(values, scale, p.num_contracted).astype(lhs.dtype), None


def quantized_matmul(
    lhs: Array,
    rhs: Array,
    rhs_scale: Float[Array, "groups ..."],
    *,
    rhs_format: str,
    rhs_shape: tuple[int, ...],
    num_contracted: int = 1,
    lhs_scale: Float[Array, "..."] | None = None,
    dtype: str | jnp.dtype | None = None,
) -> jax.Array:
    """Returns [*rows, *columns] in `dtype`: lhs contracted over its last dimensions with rhs's first.

    Args:
        lhs: [*rows, *contracted], floating (weight-only), or int8 or float8 with a scale.
        rhs: values of `rhs_format`; packed formats hold two a byte along the first dimension.
        rhs_scale: fp32 [groups, *columns]; a group is an equal part of the first contracted dimension.
        rhs_format: int8, float8_e4m3fn, float8_e5m2, int4 or nf4.
        rhs_shape: the shape of the weight, unpacked.
        num_contracted: how many dimensions are contracted.
        lhs_scale: fp32 [*rows], one a row, for a quantised lhs.
        dtype: of the output; by default that of a floating lhs, else fp32.

    Only an lhs that isn't quantised gets a gradient. Raises KernelError where shapes or formats don't fit together.
    """
    _check_dimensions(lhs, rhs_scale, rhs_shape, num_contracted)
    fmt, groups = format_named(rhs_format), rhs_scale.shape[0]
    check_groups(rhs_shape, groups)
    quantised = lhs.dtype.itemsize == 1
    rows, columns = lhs.shape[: lhs.ndim - num_contracted], rhs_shape[num_contracted:]
    stored = ((rhs_shape[0] + 1) // 2, *rhs_shape[1:]) if fmt.packed else rhs_shape
    wrong = []
    if lhs.shape[lhs.ndim - num_contracted :] != rhs_shape[:num_contracted]:
        wrong.append(f"lhs {lhs.shape} and rhs {rhs_shape} don't share {num_contracted} contracted dimensions")
    if rhs.shape != stored or rhs.dtype != jnp.dtype(fmt.dtype):
        wrong.append(f"rhs is {rhs.dtype}{list(rhs.shape)}, {rhs_format} of {rhs_shape} is {fmt.dtype}{list(stored)}")
    if rhs_scale.shape[1:] != columns:
        wrong.append(f"rhs_scale {rhs_scale.shape} isn't [groups, *{columns}]")
    if quantised != (lhs_scale is not None) or (lhs_scale is not None and lhs_scale.shape != rows):
        wrong.append(f"lhs {lhs.dtype} with lhs_scale {None if lhs_scale is None else lhs_scale.shape}: a quantised "
                     f"lhs needs one a row, {rows}, and no other has any")  # fmt: skip
    if quantised and (fmt.packed or groups > 1 or (lhs.dtype == jnp.int8) != (rhs_format == "int8")):
        wrong.append(f"a quantised lhs ({lhs.dtype}) needs rhs of its kind in one group, not {rhs_format} in {groups}")
    wrong += not_floats({"rhs_scale": rhs_scale}, ("rhs_scale",))
    if not quantised and not jnp.issubdtype(lhs.dtype, jnp.floating):
        wrong.append(f"lhs is {lhs.dtype}; it must be floating-point, or int8 or float8 with a scale")
    refuse_bad_input(
        "quantized_matmul", wrong or [*_check_scale("rhs_scale", rhs_scale), *_check_scale("lhs_scale", lhs_scale)]
    )
    problem = QuantizedMatmulProblem(
        lhs_shape=lhs.shape,
        rhs_shape=tuple(rhs_shape),
        num_contracted=num_contracted,
        groups=groups,
        lhs_format=str(lhs.dtype),
        rhs_format=rhs_format,
        dtype=str(jnp.dtype(dtype if dtype is not None else jnp.float32 if quantised else lhs.dtype)),
    )
    operands = {"lhs": lhs, "rhs": rhs, "rhs_scale": rhs_scale}
    if lhs_scale is not None:
        operands["lhs_scale"] = lhs_scale
    out: jax.Array = run(QUANTIZED_MATMUL, problem, operands)
    return out


def _check_dimensions(lhs: Array, rhs_scale: Array, rhs_shape: tuple[int, ...], num_contracted: int) -> None:
    """Raises KernelError where there are fewer dimensions than are contracted."""
    fewest = min(lhs.ndim, len(rhs_shape))
    refuse_bad_input(
        "quantized_matmul",
        [f"num_contracted {num_contracted} must be 1 to {fewest}: lhs {lhs.shape}, rhs {tuple(rhs_shape)}"]
        * (not 1 <= num_contracted <= fewest)
        + ["rhs_scale has no dimensions; expected [groups, *columns]"] * (rhs_scale.ndim == 0),
    )


def _check_scale(name: str, scale: Array | None) -> list[str]:
    numbers = values(scale)
    if numbers is None:
        return []
    bad = ~np.isfinite(numbers.astype(np.float32)) | (numbers < 0)
    return first_bad(name, numbers, bad, "a scale is finite and at least 0")
