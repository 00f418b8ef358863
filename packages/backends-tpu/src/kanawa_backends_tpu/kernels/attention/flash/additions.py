"""What is added to the scores of a block after the cap, ALiBi and a dense bias, both to base 2; and dropout."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from kanawa.kernels.attention.dropout import keep_mask
from kanawa.kernels.attention.problem import AttentionProblem

from kanawa_backends_tpu.kernels.attention.flash.masking import HIDDEN, LANES, Places
from kanawa_backends_tpu.kernels.attention.flash.tiles import Side, Tiles

_TO_BASE_2 = 1 / math.log(2)


@dataclass(frozen=True)
class Additions:
    """Adds to scores of a block.

    Attributes:
        slope: the head's, to base 2; None without ALiBi.
        biases: references to what `bias_arrays` made, by name.
    """

    places: Places
    slope: Any
    biases: Mapping[str, Any]

    def __call__(self, scores: jax.Array, start_down: Any, start_across: Any) -> jax.Array:
        """Returns scores [n, m] of a part of the block that starts there, with what they get."""
        if self.slope is None and not self.biases:
            return scores
        rows, width = scores.shape
        pieces = []
        for lane in range(0, width, LANES):
            piece, across = scores[:, lane : lane + LANES], start_across + lane
            if self.slope is not None:
                q, k = self.places.positions(rows, start_down, across)
                piece = piece - self.slope * jnp.abs(q - k).astype(jnp.float32)
            if self.biases:
                added = self._bias(rows, start_down, across).astype(jnp.float32) * _TO_BASE_2
                # A bias of -inf hides a key, as a mask does.
                piece = jnp.maximum(piece + added, HIDDEN)
            pieces.append(piece)
        return jnp.concatenate(pieces, axis=1)

    def _bias(self, rows: int, start_down: Any, start_across: Any) -> jax.Array:
        down, across = pl.ds(start_down, rows), pl.ds(start_across, LANES)
        if "bias_across" in self.biases:
            bias: jax.Array = self.biases["bias_across"][:, across]
        elif "bias_down" in self.biases:
            bias = self.biases["bias_down"][down, :]
        else:
            bias = self.biases["bias"][down, across]
        return bias


def bias_arrays(problem: AttentionProblem, bias: jax.Array, tiles: Tiles, *, queries_down: bool) -> dict[str, Any]:
    """Returns a bias as kernels take it, padded to whole blocks, under one name.

    "bias": [b, h, down, across]; of keys or queries alone "bias_across": [b, h, 1, across], or "bias_down":
    [b, h, down, 128], equal along lanes. b and h are 1 where all rows or heads share it.
    """
    bias = bias.astype(jnp.bfloat16 if bias.dtype == jnp.bfloat16 else jnp.float32)
    sides = (tiles.q, tiles.kv) if queries_down else (tiles.kv, tiles.q)
    lengths = (problem.q_length, problem.kv_length) if queries_down else (problem.kv_length, problem.q_length)
    bias = bias if queries_down else bias.swapaxes(2, 3)
    down, across = bias.shape[2:]
    if down == 1:
        # The same for all keys: one row of as many.
        row = jnp.broadcast_to(bias, (*bias.shape[:3], lengths[1]))
        return {"bias_across": _padded(row, 3, sides[1])}
    if across == 1:
        return {"bias_down": _padded(jnp.broadcast_to(bias, (*bias.shape[:3], LANES)), 2, sides[0])}
    return {"bias": _padded(_padded(bias, 2, sides[0]), 3, sides[1])}


def slopes(operands: Mapping[str, Any]) -> jax.Array:
    """Returns ALiBi's slopes to base 2, fp32 [H]."""
    slope: jax.Array = operands["alibi_slopes"]
    return slope.astype(jnp.float32) * _TO_BASE_2


def _padded(x: jax.Array, axis: int, of: Side) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, of.padded - of.length)
    return jnp.pad(x, widths)


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
