"""The public call: checks shapes and formats, makes the problem, and runs the best kernel."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kanawa.kernels.bad_input import first_bad, not_floats, refuse_bad_input, values
from kanawa.kernels.quantized_matmul.formats import format_named
from kanawa.kernels.quantized_matmul.problem import QUANTIZED_MATMUL, QuantizedMatmulProblem
from kanawa.kernels.quantized_matmul.quantize import check_groups
from kanawa.kernels.run import run


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
    refuse_bad_input("quantized_matmul", wrong or [*_scale("rhs_scale", rhs_scale), *_scale("lhs_scale", lhs_scale)])
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


def _scale(name: str, scale: Array | None) -> list[str]:
    numbers = values(scale)
    if numbers is None:
        return []
    bad = ~np.isfinite(numbers.astype(np.float32)) | (numbers < 0)
    return first_bad(name, numbers, bad, "a scale is finite and at least 0")
