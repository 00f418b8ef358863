"""Denoising diffusion in discrete times (Ho et al. 2020, arXiv:2006.11239)."""

import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float

from kanawa_layers.diffusion.betas import Betas, LinearBetas
from kanawa_layers.diffusion.objective import Noising, Objective, Spacing, Trajectory


class DDPM(Objective):
    """Noise by `betas` at whole times, all alike often; what is predicted is the slot `prediction`."""

    betas: Betas

    class Config(Objective.Config):
        betas: Betas.Config = LinearBetas.Config()

    def setup(self) -> None:
        """Declares the schedule and the prediction."""
        super().setup()
        self.add_child("betas", self.config.betas)

    @kn.nowrap
    def noising(self, quantiles: Float[Array, " B"]) -> Noising:
        """Returns the noise at the whole times of these quantiles."""
        left = self.betas.signal()
        times = jnp.clip((quantiles * len(left)).astype(jnp.int32), 0, len(left) - 1)
        signal, level = (jnp.asarray(np.sqrt(a), jnp.float32) for a in (left, 1.0 - left))
        return Noising(times.astype(jnp.float32), jnp.take(signal, times), jnp.take(level, times))

    @kn.nowrap
    def trajectory(self, num_steps: int, spacing: Spacing) -> Trajectory:
        """Returns the whole times of a spacing, their noise, and that of a picture."""
        left = self.betas.signal()
        times = np.round(spacing.places(num_steps, len(left))).astype(np.int64)
        shares = np.append(left[times], 1.0)
        return Trajectory(times.astype(np.float64), np.sqrt(shares), np.sqrt(1.0 - shares))
