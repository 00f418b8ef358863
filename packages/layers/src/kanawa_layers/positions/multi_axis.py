"""Rotary embeddings of several positions a token: rows and columns of patches, and M-RoPE with streams in turn."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Positions
from kanawa.errors import ConfigError

from kanawa_layers.positions.rotary import Rotary


class AxialRotary(Positions):
    """Half of a head's pairs turn by a patch's row, half by its column, with the same frequencies (Qwen2-VL's tower).

    Wang et al. 2024, arXiv:2409.12191, section 2.1. Positions are [row, column]; one alone serves for both. Pairs are
    (i, i + d/2); angles and rotation are in fp32. No context is stretched here: modifiers of `Rotary` don't reach it.
    """

    class Config(Positions.Config):
        theta: kn.Positive = 10_000.0

    def setup(self) -> None:
        """Raises ConfigError for a head whose pairs don't divide by two axes."""
        if self.config.head_dim % 4:
            message = f"{self.path}: a head of {self.config.head_dim} has no pairs for two axes; a multiple of 4 has"
            raise ConfigError(message)

    def rotate(
        self, q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], positions: Int[Array, "B T *streams"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"]]:
        """Returns rotated q and k."""
        cfg = self.config
        axis = cfg.head_dim // 2
        # The exponent's denominator is an axis's half of the head.
        frequencies = cfg.theta ** -(jnp.arange(0, axis, 2, dtype=jnp.float32) / axis)
        at = positions.astype(jnp.float32)
        at = jnp.stack([at, at], axis=-1) if at.ndim == 2 else at
        angles = (at[..., None] * frequencies[None, None, None]).reshape(*at.shape[:2], 1, axis)
        cos, sin = jnp.cos(angles), jnp.sin(angles)

        def turned(x: Float[Array, "B T H D"]) -> Float[Array, "B T H D"]:
            first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
            return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

        return turned(q), turned(k)


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
