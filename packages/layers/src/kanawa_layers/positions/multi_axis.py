"""Rotary embeddings of several positions a token: rows and columns of patches, and M-RoPE with streams in turn."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.errors import ConfigError

from kanawa_layers.positions.rotary import Rotary


class AxialRotary(Rotary):
    """Half of a head turns by a patch's row, half by its column, with the same frequencies (Qwen2-VL's tower).

    Wang et al. 2024, arXiv:2409.12191, section 2.1. Positions are [row, column]; one alone serves for both.
    """

    def setup(self) -> None:
        """Raises ConfigError for a head whose pairs don't divide by two axes."""
        super().setup()
        if self.rotated_dim % 4:
            message = f"{self.path}: a head of {self.rotated_dim} has no two halves of pairs; a multiple of 4 has"
            raise ConfigError(message)

    @kn.nowrap
    def inverse_frequencies(self) -> Float[Array, " half"]:
        """Returns those of an axis twice, fp32; the exponent's denominator is half the head."""
        axis = self.rotated_dim // 2
        once = self.config.theta ** -(jnp.arange(0, axis, 2, dtype=jnp.float32) / axis)
        if self.config.scaling is not None:
            once = self.config.scaling.build().stretch(once, self.config.theta, axis)
        return jnp.concatenate([once, once])

    def _of_each_frequency(self, positions: Int[Array, "B T *streams"]) -> Float[Array, "B T half_or_1"]:
        at = positions.astype(jnp.float32)
        if at.ndim == 2:
            return at[..., None]
        quarter = self.rotated_dim // 4
        return jnp.concatenate([jnp.repeat(at[..., axis, None], quarter, axis=-1) for axis in (0, 1)], axis=-1)


class RotaryInTurn(Rotary):
    """M-RoPE whose streams take frequencies in turn, t h w t h w …, as many as `sections` say (Qwen3-VL).

    Where a stream other than the first has its number, the first takes its turns.
    """

    def _of_each_frequency(self, positions: Int[Array, "B T *streams"]) -> Float[Array, "B T half_or_1"]:
        at, sections = positions.astype(jnp.float32), self.config.sections
        if at.ndim == 2 or not sections:
            return super()._of_each_frequency(positions)
        turn = len(sections)
        streams = [i % turn if i < turn * sections[i % turn] else 0 for i in range(self.rotated_dim // 2)]
        return at[..., jnp.asarray(streams)]
