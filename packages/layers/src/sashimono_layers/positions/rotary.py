"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

import jax
import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float, Int
from sashimono.arrays.broadcast import along_last
from sashimono.contracts import Positions
from sashimono.errors import ConfigError

from sashimono_layers.positions.frequency_scaling import FrequencyScaling


class Rotary(Positions):
    """Turns pairs of the first `fraction` of each head by angles that grow with position.

    Pairs are (i, i + d/2) as in Llama, or, `interleaved`, (2i, 2i + 1) as in GPT-J, DeepSeek and Llama 4. `sections`
    gives so many frequencies to each of several position streams (M-RoPE: Wang et al. 2024, arXiv:2409.12191); where
    tokens have one position only, all streams are it. Angles and the turn are computed in fp32; results have the
    inputs' dtype.
    """

    class Config(Positions.Config):
        theta: float = 10_000.0
        fraction: float = 1.0
        interleaved: bool = False
        sections: tuple[int, ...] = ()
        scaling: FrequencyScaling.Config | None = None

        def check(self) -> list[str]:
            """Returns what is wrong with the fraction."""
            if 0.0 < self.fraction <= 1.0:
                return []
            return [f"fraction is {self.fraction}, expected 0 < fraction <= 1"]

    def setup(self) -> None:
        """Fixes the rotated width: the even number nearest below fraction * head_dim."""
        self.rotated_dim = int(self.config.head_dim * self.config.fraction) // 2 * 2
        sections = self.config.sections
        if sections and sum(sections) != self.rotated_dim // 2:
            message = f"sections {sections} sum to {sum(sections)}, but there are {self.rotated_dim // 2} frequencies"
            raise ConfigError(message)

    @sm.nowrap
    def inverse_frequencies(self) -> Float[Array, " half"]:
        """Returns the angle per position of each pair, fp32."""
        cfg, dim = self.config, self.rotated_dim
        inv_freq = cfg.theta ** -(jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
        return inv_freq if cfg.scaling is None else cfg.scaling.build().stretch(inv_freq, cfg.theta, dim)

    def rotate(
        self, q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], positions: Int[Array, "B T *streams"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"]]:
        """Returns q and k turned; scores then depend on position differences only."""
        scaling = self.config.scaling
        factor = 1.0 if scaling is None else scaling.build().attention_factor()
        angles = self._of_each_frequency(positions) * along_last(self.inverse_frequencies(), 3)
        cos, sin = factor * jnp.cos(angles)[:, :, None, :], factor * jnp.sin(angles)[:, :, None, :]
        return self._turn(q, cos, sin), self._turn(k, cos, sin)

    def _of_each_frequency(self, positions: Int[Array, "B T *streams"]) -> Float[Array, "B T half_or_1"]:
        """Returns the position that each frequency multiplies."""
        places, sections = positions.astype(jnp.float32), self.config.sections
        if places.ndim == 2:
            return places[..., None]
        if not sections:
            return places[..., :1]
        streams = [stream for stream, size in enumerate(sections) for _ in range(size)]
        return places[..., jnp.asarray(streams)]

    def _turn(
        self, x: Float[Array, "B T H D"], cos: Float[Array, "B T 1 half"], sin: Float[Array, "B T 1 half"]
    ) -> Float[Array, "B T H D"]:
        half, dtype = self.rotated_dim // 2, x.dtype
        turning, rest = jnp.split(x.astype(jnp.float32), [2 * half], axis=-1)
        first, second = self._pairs(turning)
        parts = first * cos - second * sin, second * cos + first * sin
        if self.config.interleaved:
            turned = jnp.stack(parts, axis=-1).reshape(turning.shape)
        else:
            turned = jnp.concatenate(parts, axis=-1)
        if rest.shape[-1]:
            turned = jnp.concatenate([turned, rest], axis=-1)
        return turned.astype(dtype)

    def _pairs(self, x: Float[Array, "B T H R"]) -> tuple[jax.Array, jax.Array]:
        if self.config.interleaved:
            return x[..., 0::2], x[..., 1::2]
        first, second = jnp.split(x, 2, axis=-1)
        return first, second
