"""Initialisers: functions of (key, shape, dtype, fan_in, fan_out), with a readable name for golden files."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp


class Initializer(Protocol):
    """Draws a parameter; `fan_in` and `fan_out` are the sizes the ParamSpec derived from its fan axes."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns an array of `shape` and `dtype`."""
        ...


@dataclasses.dataclass(frozen=True)
class Constant:
    """Every element equals `value`."""

    value: float

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the filled array; the key is unused."""
        del key, fan_in, fan_out
        return jnp.full(shape, self.value, dtype)


@dataclasses.dataclass(frozen=True)
class Normal:
    """A normal of standard deviation `stddev`, truncated at two deviations when `truncated`."""

    stddev: float
    truncated: bool = False

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the draw, made in fp32 and cast to `dtype`."""
        del fan_in, fan_out
        return _draw(key, shape, dtype, self.stddev, self.truncated)


@dataclasses.dataclass(frozen=True)
class FanNormal:
    """A normal whose variance is `scale / fan`, with fan one of "in", "out", "average"."""

    scale: float = 1.0
    fan: str = "in"
    truncated: bool = True

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the draw, made in fp32 and cast to `dtype`."""
        fans = {"in": fan_in, "out": fan_out, "average": (fan_in + fan_out) / 2}
        stddev = math.sqrt(self.scale / max(1.0, fans[self.fan]))
        return _draw(key, shape, dtype, stddev, self.truncated)


def _draw(key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, stddev: float, truncated: bool) -> jax.Array:
    if not truncated:
        # Drawn in fp32 and rounded: a model in another dtype starts from the same numbers.
        return (stddev * jax.random.normal(key, shape, jnp.float32)).astype(dtype)
    # Truncation at two deviations shrinks the spread to 0.8796 of the normal's; divide to keep `stddev` exact.
    draw = jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
    return (stddev / 0.87962566103423978 * draw).astype(dtype)


normal = Normal
fan_in_normal = FanNormal
zeros = Constant(0.0)
ones = Constant(1.0)
