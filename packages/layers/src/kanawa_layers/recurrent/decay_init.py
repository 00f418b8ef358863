"""How the decays of recurrences are drawn: time scales spread evenly over the lengths that matter."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class LogOfUniform:
    """log(u), u uniform in [low, high): Mamba-2's `A_log` (reference implementation: 1 to 16)."""

    low: float = 1.0
    high: float = 16.0

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the draw."""
        del fan_in, fan_out
        return jnp.log(jax.random.uniform(key, shape, jnp.float32, self.low, self.high)).astype(dtype)


@dataclasses.dataclass(frozen=True)
class StepBias:
    """The inverse softplus of steps drawn evenly on a log scale from `low` to `high`, at least `floor` (Mamba)."""

    low: float = 1e-3
    high: float = 0.1
    floor: float = 1e-4

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the draw."""
        del fan_in, fan_out
        low, high = math.log(self.low), math.log(self.high)
        step = jnp.maximum(jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high)), self.floor)
        # log(exp(step) - 1), in a form that is exact for a step of 0.0001.
        return (step + jnp.log(-jnp.expm1(-step))).astype(dtype)


@dataclasses.dataclass(frozen=True)
class RingDecay:
    """Lambda with exp(-softplus(Lambda)) of even density in the ring [low, high] (Griffin, section 2.4; LRU)."""

    low: float = 0.9
    high: float = 0.999

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: jnp.dtype, fan_in: int, fan_out: int) -> jax.Array:
        """Returns the draw."""
        del fan_in, fan_out
        # Uniform in the square is even over the ring's area; softplus(Lambda) is then -log(square) / 2.
        squared = jax.random.uniform(key, shape, jnp.float32, self.low**2, self.high**2)
        return jnp.log(jnp.expm1(-0.5 * jnp.log(squared))).astype(dtype)
