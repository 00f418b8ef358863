"""Dropout inside a kernel: the same weights of a block stay as everywhere else (`kanawa.kernels.attention.dropout`)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from kanawa.kernels.attention.dropout import keep_mask

from kanawa_backends_tpu.kernels.attention.flash.masking import LANES, Places


@dataclass(frozen=True)
class Dropping:
    """Drops numbers of a block, one for each score.

    Attributes:
        words: references to the two words of each query (`dropout.row_words`), their bits as int32: [n, 128], equal
            along lanes, where queries lie along sublanes, else [1, n]; None without dropout.
    """

    places: Places
    words: tuple[Any, Any] | None
    rate: float

    @property
    def factor(self) -> float:
        """What makes up for the weights that are dropped: sums are multiplied with it once, not each weight."""
        return 1.0 / (1.0 - self.rate)

    def __call__(self, numbers: jax.Array, start_down: Any, start_across: Any) -> jax.Array:
        """Returns numbers [n, m] of a part of the block that starts there, zero where the weight is dropped."""
        if self.words is None:
            return numbers
        rows, width = numbers.shape
        pieces = []
        for lane in range(0, width, LANES):
            at = (rows, start_down, start_across + lane)
            keys = self.places.indices(*at)[1].astype(jnp.uint32)
            first, second = (self._of_queries(word, *at) for word in self.words)
            pieces.append(jnp.where(keep_mask(first, second, keys, self.rate), numbers[:, lane : lane + LANES], 0.0))
        return jnp.concatenate(pieces, axis=1)

    def _of_queries(self, word: Any, rows: int, start_down: Any, start_across: Any) -> jax.Array:
        if self.places.queries_down:
            bits: jax.Array = word[pl.ds(start_down, rows), :]
        else:
            bits = word[:, pl.ds(start_across, LANES)]
        return bits.astype(jnp.uint32)
