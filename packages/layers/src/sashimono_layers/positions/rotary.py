"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), half-split layout as in Llama."""

import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float, Int
from sashimono.arrays.broadcast import along_last
from sashimono.contracts import Positions

from sashimono_layers.positions.frequency_scaling import FrequencyScaling


class Rotary(Positions):
    """Turns pairs (i, i + d/2) of the first `fraction` of each head by angles that grow with position.

    Angles and the turn are computed in fp32; results have the inputs' dtype.
    """

    class Config(Positions.Config):
        theta: float = 10_000.0
        fraction: float = 1.0
        scaling: FrequencyScaling.Config | None = None

        def check(self) -> list[str]:
            """Returns what is wrong with the fraction."""
            if 0.0 < self.fraction <= 1.0:
                return []
            return [f"fraction is {self.fraction}, expected 0 < fraction <= 1"]

    def setup(self) -> None:
        """Fixes the rotated width: the even number nearest below fraction * head_dim."""
        self.rotated_dim = int(self.config.head_dim * self.config.fraction) // 2 * 2

    @sm.nowrap
    def inverse_frequencies(self) -> Float[Array, " half"]:
        """Returns the angle per position of each pair, fp32."""
        cfg, dim = self.config, self.rotated_dim
        inv_freq = cfg.theta ** -(jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
        return inv_freq if cfg.scaling is None else cfg.scaling.build().stretch(inv_freq, cfg.theta, dim)

    def rotate(
        self, q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"]]:
        """Returns q and k turned; scores then depend on position differences only."""
        angles = positions[..., None].astype(jnp.float32) * along_last(self.inverse_frequencies(), 3)
        cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
        return self._turn(q, cos, sin), self._turn(k, cos, sin)

    def _turn(
        self, x: Float[Array, "B T H D"], cos: Float[Array, "B T 1 half"], sin: Float[Array, "B T 1 half"]
    ) -> Float[Array, "B T H D"]:
        half, dtype = self.rotated_dim // 2, x.dtype
        first, second, rest = jnp.split(x.astype(jnp.float32), [half, 2 * half], axis=-1)
        turned = [first * cos - second * sin, second * cos + first * sin]
        if rest.shape[-1]:
            turned.append(rest)
        return jnp.concatenate(turned, axis=-1).astype(dtype)
