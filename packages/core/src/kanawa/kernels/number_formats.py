"""The number formats weights and activations are quantised to: rounding, packing 4-bit ones in bytes, scales.

Quantising is by the absolute maximum, symmetric, with scales in fp32.
"""

import dataclasses
import itertools
import statistics

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt8

from kanawa.errors import KernelError, did_you_mean

#: Zero would divide by zero, and so would a subnormal number where those are flushed to it.
_SMALLEST_SCALE = 1e-30


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """A format: real value = stored value x scale.

    Attributes:
        dtype: what one value, or one pair of packed values, is stored as.
        largest: the magnitude that the largest value of a group is scaled to.
        packed: two values a byte, along the first contracted dimension.
        levels: for a codebook, the real values of codes 0, 1, ….
        relative_error: rounding moves a value that isn't tiny by at most this share of itself (floating formats).
        step: rounding moves a value by at most half of this times its scale (integer formats and codebooks).
    """

    name: str
    dtype: str
    largest: float
    packed: bool = False
    levels: tuple[float, ...] = ()
    relative_error: float = 0.0
    step: float = 0.0

    def round(self, x: Float[Array, "..."]) -> Array:
        """Returns scaled values rounded to the format, not yet packed: int8, a float8, or uint8 codes."""
        if self.levels:
            edges = [(low + high) / 2 for low, high in itertools.pairwise(self.levels)]
            return jnp.searchsorted(jnp.array(edges, x.dtype), x).astype(jnp.uint8)
        if self.packed or self.dtype == "int8":
            # Symmetric: -128 (-8 in four bits) stays unused, so that a value and its negative round alike.
            return jnp.round(jnp.clip(x, -self.largest, self.largest)).astype(jnp.int8)
        # A conversion past the largest number is NaN, and division may round up to just past it.
        return jnp.clip(x, -self.largest, self.largest).astype(self.dtype)

    def values(self, stored: Array, num_contracted_first: int, dtype: jnp.dtype) -> Float[Array, "..."]:
        """Returns unscaled values of stored ones; `num_contracted_first` is the first dimension's size, unpacked."""
        if not self.packed:
            return stored.astype(dtype)
        codes = unpack(stored, num_contracted_first)
        if self.levels:
            return jnp.take(jnp.array(self.levels, dtype), codes.astype(jnp.int32), axis=0)
        # Sign-extends the low four bits.
        return (((codes.astype(jnp.int8)) ^ 8) - 8).astype(dtype)


def _normal_levels() -> tuple[float, ...]:
    """Returns NF4's sixteen levels: quantiles of a normal, 8 from 0 up and 8 from 0 down, scaled to 1.

    Dettmers et al. 2023 (QLoRA, arXiv:2305.14314), section 3 and appendix E.
    """
    # The outermost quantiles would be infinite at 0 and 1. QLoRA's ends are the mean of 1 - 1/30 and 1 - 1/32.
    quantile, tail = statistics.NormalDist().inv_cdf, 0.9677083
    above = [quantile(0.5 + (tail - 0.5) * i / 8) for i in range(1, 9)]
    below = [-quantile(0.5 + (tail - 0.5) * i / 7) for i in range(1, 8)]
    levels = sorted([*below, 0.0, *above])
    return tuple(level / levels[-1] for level in levels)


_NF4 = _normal_levels()

INT8 = NumberFormat("int8", "int8", 127.0, step=1.0)
E4M3 = NumberFormat("float8_e4m3fn", "float8_e4m3fn", 448.0, relative_error=2.0**-4)
E5M2 = NumberFormat("float8_e5m2", "float8_e5m2", 57344.0, relative_error=2.0**-3)
INT4 = NumberFormat("int4", "uint8", 7.0, packed=True, step=1.0)
NF4 = NumberFormat("nf4", "uint8", 1.0, packed=True, levels=_NF4, step=max(b - a for a, b in itertools.pairwise(_NF4)))

FORMATS = {fmt.name: fmt for fmt in (INT8, E4M3, E5M2, INT4, NF4)}


def format_named(name: str) -> NumberFormat:
    """Returns the format; raises KernelError for an unknown name."""
    if name not in FORMATS:
        message = f"no quantised format {name!r}{did_you_mean(name, FORMATS)}"
        raise KernelError(message)
    return FORMATS[name]


def pack(codes: Int[Array, "K ..."]) -> UInt8[Array, "half ..."]:
    """Returns 4-bit codes two a byte along the first dimension: even rows in the low half; an odd end is padded."""
    bits = codes.astype(jnp.uint8) & jnp.uint8(15)
    if bits.shape[0] % 2:
        bits = jnp.concatenate([bits, jnp.zeros_like(bits[:1])])
    out: jax.Array = bits[0::2] | (bits[1::2] << jnp.uint8(4))
    return out


def unpack(stored: UInt8[Array, "half ..."], length: int) -> UInt8[Array, "K ..."]:
    """Returns the `length` 4-bit codes (0 to 15) along the first dimension that `pack` put together."""
    pairs = jnp.stack([stored & jnp.uint8(15), stored >> jnp.uint8(4)], axis=1)
    return jax.lax.slice_in_dim(pairs.reshape(-1, *stored.shape[1:]), 0, length, axis=0)


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
    return jnp.maximum(jax.lax.stop_gradient(largest) / fmt.largest, _SMALLEST_SCALE)
