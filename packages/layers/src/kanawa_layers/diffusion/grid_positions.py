"""Positions of patches in the rows and columns of a picture."""

import abc

import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float


class GridPositions(kn.Module):
    """A vector for each patch of a picture; a slot of models, added to the patches."""

    class Config(kn.Module.Config):
        output_dim: kn.Size = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(self, rows: int, columns: int) -> Float[Array, "T E"]:
        """Returns what is added to the patches, rows one after another, in the compute dtype."""


class SinusoidalGrid(GridPositions):
    """Half of the channels are sines and cosines of the column, half of the row; no parameters (MAE, DiT).

    Places count 0, 1, 2, … `scale`: a model for a grid of another size than it is trained on may shrink them.
    """

    class Config(GridPositions.Config):
        theta: kn.Positive = 10_000.0
        scale: kn.Positive = 1.0

        def check(self) -> list[str]:
            """Returns that channels come in fours."""
            if not isinstance(self.output_dim, int) or self.output_dim % 4 == 0:
                return []
            return [f"output_dim ({self.output_dim}) is not a multiple of 4: sines and cosines of two axes"]

    def forward(self, rows: int, columns: int) -> Float[Array, "T E"]:
        """Returns the waves: constants of the program, computed in float64."""
        cfg = self.config
        quarter = cfg.output_dim // 4
        frequencies = cfg.theta ** -(np.arange(quarter) / quarter)
        grid = np.meshgrid(np.arange(columns), np.arange(rows))
        angles = [np.outer(cfg.scale * places.reshape(-1), frequencies) for places in grid]
        waves = np.concatenate([wave(a) for a in angles for wave in (np.sin, np.cos)], axis=1)
        return jnp.asarray(waves, kn.current_plan().precision.compute)
