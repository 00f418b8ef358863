"""Frozen weights stored in 16, 8 or 4 bits, and used in the compute dtype."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.init import Constant
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import WeightForm
from kanawa.contracts.weights import StoredWeight
from kanawa.kernels.matmul import matmul
from kanawa.kernels.number_formats import INT4, INT8, NF4, NumberFormat, dequantize_rhs, quantize_rhs
from kanawa.kernels.quantized_matmul import quantized_matmul


class FrozenFloat(WeightForm):
    """A weight that isn't trained, stored as `dtype`: released checkpoints are bfloat16, which then loses nothing."""

    class Config(WeightForm.Config):
        dtype: kn.FloatDtype = "bfloat16"

    @kn.nowrap
    def specs(self, spec: ParamSpec) -> dict[str, ParamSpec]:
        """Returns the dense weight's, untrained."""
        return {"": dataclasses.replace(spec, dtype=self.config.dtype, weight_decay=0.0, trainable=False)}

    @kn.nowrap
    def store(self, weight: Array, spec: ParamSpec) -> dict[str, Array]:
        """Returns the rounded weight."""
        del spec
        return {"": weight.astype(self.config.dtype)}

    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x @ weight; x gets a gradient, the weight none."""
        return matmul(x, stored[""], len(spec.fan_in_axes))


class WeightOnly(WeightForm):
    """A weight becomes values of `number_format` under its own path, and fp32 scales under `<weight>_scale`.

    A scale spans `group_size` elements of the fan-in, or all of it where that is None; the size is lowered where it
    doesn't divide the weight. Dimensions before the fan-in, such as experts, are quantised one by one.
    """

    class Config(WeightForm.Config):
        group_size: kn.Size | None = None

    @property
    @abc.abstractmethod
    def number_format(self) -> NumberFormat:
        """The format of stored values."""

    @kn.nowrap
    def specs(self, spec: ParamSpec) -> dict[str, ParamSpec]:
        """Returns the values, whose first fan-in dimension is halved where two share a byte, and the scales."""
        fmt, first = self.number_format, spec.fan_in_axes[0]
        shape = list(spec.shape)
        shape[first] = (shape[first] + 1) // 2 if fmt.packed else shape[first]
        groups, after = self.groups(spec), first + len(spec.fan_in_axes)
        # With this scale random bits have the variance of a fan-in initialiser, so an untrained model still runs.
        scale = 1.0 / (_spread(fmt) * math.sqrt(spec.fans()[0]))
        fixed: dict[str, Any] = {"weight_decay": 0.0, "trainable": False}
        values = dataclasses.replace(spec, shape=tuple(shape), dtype=fmt.dtype, init=RandomBits(), **fixed)
        scales = ParamSpec(
            (*spec.shape[:first], groups, *spec.shape[after:]),
            (*spec.axes[:first], None, *spec.axes[after:]),
            init=Constant(scale),
            fan_in_axes=(first,),
            **fixed,
        )
        return {"": values, "_scale": scales}

    @kn.nowrap
    def groups(self, spec: ParamSpec) -> int:
        """Returns the number of groups of the first fan-in dimension."""
        if self.config.group_size is None:
            return 1
        # A group is whole slices of the first dimension: of [heads, head_dim, embed], whole heads.
        first, *rest = (spec.shape[axis] for axis in spec.fan_in_axes)
        return first // math.gcd(first, max(1, self.config.group_size // math.prod(rest)))

    @kn.nowrap
    def store(self, weight: Array, spec: ParamSpec) -> dict[str, Array]:
        """Returns the quantised weight and its scales."""
        contracted, groups, fmt = len(spec.fan_in_axes), self.groups(spec), self.number_format
        quantise = _over_leading(lambda w: quantize_rhs(w, fmt, contracted, groups), spec)
        values, scale = quantise(weight.astype(jnp.float32))
        return {"": values, "_scale": scale}

    @kn.nowrap
    def dense(self, stored: StoredWeight, spec: ParamSpec, dtype: Any) -> Array:
        """Returns the restored weight."""
        shape, contracted, fmt = spec.shape[spec.fan_in_axes[0] :], len(spec.fan_in_axes), self.number_format
        read = _over_leading(lambda v, s: dequantize_rhs(v, s, fmt, shape, contracted), spec)
        weight: Array = read(stored[""], stored["_scale"])
        return weight.astype(dtype)

    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x @ weight; x gets a gradient, the weight none."""
        return quantized_matmul(
            x,
            stored[""],
            stored["_scale"],
            rhs_format=self.number_format.name,
            rhs_shape=spec.shape,
            num_contracted=len(spec.fan_in_axes),
        )


class Int8Weights(WeightOnly):
    """int8 with one scale an output column, by default."""

    @property
    def number_format(self) -> NumberFormat:
        """int8."""
        return INT8


class Int4Weights(WeightOnly):
    """Two 4-bit integers a byte."""

    class Config(WeightOnly.Config):
        group_size: kn.Size | None = 128

    @property
    def number_format(self) -> NumberFormat:
        """int4."""
        return INT4


class NF4Weights(WeightOnly):
    """Two codes of sixteen normal quantiles a byte (Dettmers et al. 2023, arXiv:2305.14314); scales stay fp32."""

    class Config(WeightOnly.Config):
        group_size: kn.Size | None = 64

    @property
    def number_format(self) -> NumberFormat:
        """nf4."""
        return NF4


@dataclasses.dataclass(frozen=True)
class RandomBits:
    """Every byte equally likely."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the array, of a one-byte integer dtype."""
        del fan_in, fan_out
        return jax.lax.bitcast_convert_type(jax.random.bits(key, tuple(shape), jnp.uint8), dtype)


def _spread(fmt: NumberFormat) -> float:
    """Returns the root mean square of equally likely values."""
    if fmt.levels:
        return math.sqrt(sum(level * level for level in fmt.levels) / len(fmt.levels))
    # Of a uniform distribution between minus and plus the largest.
    return fmt.largest / math.sqrt(3.0)


def _over_leading(function: Callable[..., Any], spec: ParamSpec) -> Callable[..., Any]:
    """Returns the function mapped over the dimensions before the fan-in."""
    for _ in range(spec.fan_in_axes[0]):
        function = jax.vmap(function)
    return function
