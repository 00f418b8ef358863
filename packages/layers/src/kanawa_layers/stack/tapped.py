"""A stack that also returns its stream after some of its layers."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Sequences

from kanawa_layers.stack.without_cache import CachelessStack


class TappedStack(CachelessStack):
    """Equal blocks; the result has the last stream and behind it, along channels, those after layers `taps`.

    Layers count from 0, and taps rise. Without caches: it is for encoders.
    """

    class Config(CachelessStack.Config):
        taps: tuple[kn.Count, ...] = ()

        def check(self) -> list[str]:
            """Returns which taps aren't layers in rising order."""
            inside = all(tap < self.num_layers for tap in self.taps)
            if inside and list(self.taps) == sorted(set(self.taps)):
                return []
            return [f"taps are {self.taps}, expected rising numbers from 0 to {self.num_layers - 1}"]

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T taps_and_1_E"], Any]:
        """Returns the streams, [B, T, (1 + taps) * E]; there are no caches."""
        tapped, start = [], 0
        for end in (*(tap + 1 for tap in self.config.taps), self.config.num_layers):
            if end > start:
                x = self.run(x, sequences, start, end - start)
            tapped.append(x)
            start = end
        return jnp.concatenate([tapped[-1], *tapped[:-1]], axis=-1), caches
