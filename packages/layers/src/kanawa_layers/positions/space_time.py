"""Rotary positions of grids: a part of each head turns by each axis, with frequencies of its own."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.arrays.broadcast import along_last
from kanawa.contracts import Positions
from kanawa.errors import ModuleError


class SpaceTimeRotary(Positions):
    """Neighbouring pairs (2i, 2i + 1) turn by the time, row or column of a token, as `Sequences.coordinates` has them.

    Rows and columns get a third of the pairs each, rounded down, and time the rest; in a part of d channels, pair i
    turns by theta^(-2i / d) a step (Wan, arXiv:2503.20314). Computed in fp32; results have the inputs' dtype.
    """

    class Config(Positions.Config):
        theta: kn.Positive = 10_000.0

    @kn.nowrap
    def sections(self) -> tuple[int, int, int]:
        """Returns the pairs of time, rows and columns."""
        pairs = self.config.head_dim // 2
        return (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)

    def rotate(
        self, q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], positions: Int[Array, "B T *streams"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"]]:
        """Returns rotated q and k; raises ModuleError without three coordinates a token."""
        if positions.ndim != 3 or positions.shape[-1] != 3:
            message = f"{self.path} takes time, row and column of each token, and got positions {positions.shape}"
            raise ModuleError(message)
        theta, sections = self.config.theta, self.sections()
        frequencies = [theta ** -(jnp.arange(size, dtype=jnp.float32) / size) for size in sections]
        streams = jnp.asarray([stream for stream, size in enumerate(sections) for _ in range(size)])
        # fp32: bfloat16 can't tell neighbouring places of a long row.
        angles = positions.astype(jnp.float32)[..., streams] * along_last(jnp.concatenate(frequencies), 3)
        cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]

        def turned(x: Float[Array, "B T H D"]) -> Float[Array, "B T H D"]:
            first, second = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
            both = jnp.stack((first * cos - second * sin, second * cos + first * sin), axis=-1)
            return both.reshape(x.shape).astype(x.dtype)

        return turned(q), turned(k)
