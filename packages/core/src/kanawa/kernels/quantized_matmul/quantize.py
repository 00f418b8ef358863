"""Scales an operand to the range of a number format and rounds it: absolute maximum, symmetric, scales in fp32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kanawa.errors import KernelError
from kanawa.kernels.quantized_matmul.formats import NumberFormat, pack

#: The smallest scale: zero would divide by zero, and so would a subnormal number where those are flushed to it.
_SMALLEST = 1e-30


def quantize_lhs(x: Float[Array, "..."], fmt: NumberFormat, num_contracted: int) -> tuple[Array, Float[Array, "..."]]:
    """Returns values in the format and one scale a row, shaped like x without its last `num_contracted` dims."""
    axes = tuple(range(x.ndim - num_contracted, x.ndim))
    x32 = x.astype(jnp.float32)
    scale = _scale(x32, axes, fmt)
    return fmt.round(x32 / scale), jnp.squeeze(scale, axes)


def quantize_rhs(
    weight: Float[Array, "..."], fmt: NumberFormat, num_contracted: int, groups: int = 1
) -> tuple[Array, Float[Array, "groups ..."]]:
    """Returns values in the format, packed where it is, and scales [groups, *outputs].

    Each output column has one scale for each of `groups` equal parts of the first contracted dimension. Raises
    KernelError where they don't divide it.
    """
    check_groups(weight.shape, groups)
    grouped = weight.astype(jnp.float32).reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    axes = tuple(range(1, num_contracted + 1))
    scale = _scale(grouped, axes, fmt)
    rounded = fmt.round(grouped / scale).reshape(weight.shape)
    return pack(rounded) if fmt.packed else rounded, jnp.squeeze(scale, axes)


def dequantize_rhs(
    stored: Array, scale: Float[Array, "groups ..."], fmt: NumberFormat, shape: tuple[int, ...], num_contracted: int
) -> Float[Array, "..."]:
    """Returns the fp32 weight of shape `shape` that was stored."""
    values = fmt.values(stored, shape[0], jnp.dtype(jnp.float32))
    return scaled_rhs(values, scale, num_contracted)


def scaled_rhs(
    values: Float[Array, "..."], scale: Float[Array, "groups ..."], num_contracted: int
) -> Float[Array, "..."]:
    """Returns unscaled weight values times their groups' scales."""
    groups, shape = scale.shape[0], values.shape
    grouped = values.reshape(groups, shape[0] // groups, *shape[1:])
    spread = scale.reshape(groups, *(1,) * num_contracted, *shape[num_contracted:])
    return (grouped * spread).reshape(shape)


def check_groups(shape: tuple[int, ...], groups: int) -> None:
    """Raises KernelError where `groups` equal parts don't make up the first dimension."""
    if groups < 1 or shape[0] % groups:
        message = f"a first dimension of {shape[0]} can't be split in {groups} equal groups; use a divisor of it"
        raise KernelError(message)


def _scale(x: Float[Array, "..."], axes: tuple[int, ...], fmt: NumberFormat) -> Float[Array, "..."]:
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
    # A constant to the gradient: else the largest element of each group would get the gradient of all the others.
    return jnp.maximum(jax.lax.stop_gradient(largest) / fmt.largest, _SMALLEST)
