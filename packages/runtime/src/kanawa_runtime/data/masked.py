"""Rows for models that see both sides: some tokens of another source's rows are hidden and must be predicted."""

import numpy as np
from kanawa.config import Fraction

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.hiding import HidingRows
from kanawa_runtime.data.permutation import random_words

#: What BERT does with a chosen token (arXiv:1810.04805, section 3.1): hide 80 %, change 10 %, keep 10 %.
_HIDDEN, _CHANGED = 0.8, 0.1


def _fractions(count: int, *key: int) -> np.ndarray:
    """Returns `count` numbers from 0 to below 1: the upper 53 bits of the stream's words, which a double holds."""
    return (random_words(count, *key) >> np.uint64(11)) * 2.0**-53


class MaskedTokens(HidingRows):
    """Rows of `source`, at this one's length, in which some tokens are chosen and most of the chosen are hidden.

    Each token is chosen with probability `share`. `target_ids` are the row's own tokens, weighed 1 where one was
    chosen and 0 elsewhere. A hidden token is the id `mask_id`, by default one more than the source's largest, so that
    text never makes it.
    """

    class Config(HidingRows.Config):
        share: Fraction = 0.15

        def check(self) -> list[str]:
            """Returns what is wrong with the share."""
            return [] if 0.0 < self.share < 1.0 else [f"share is {self.share}, expected a number between 0 and 1"]

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; the same tokens of it are hidden each time."""
        row = self._source.row(index)
        tokens = row["input_ids"]
        if tokens.size and tokens.max() >= self.vocab_size:
            message = f"row {index} has the id {tokens.max()}; its source's ids are below {self.vocab_size}"
            raise RowError(message)
        # Drawn for every token, so that a token's draw doesn't depend on which others were chosen.
        chance, fate = (_fractions(tokens.size, self.config.seed, index, draw) for draw in range(2))
        others = (random_words(tokens.size, self.config.seed, index, 2) % self._source.vocab_size).astype(np.int32)
        chosen = (chance < self.config.share) & (row["segment_ids"] > 0)
        shown = np.where(chosen & (fate < _HIDDEN), np.int32(self.mask_id), tokens)
        shown = np.where(chosen & (fate >= _HIDDEN) & (fate < _HIDDEN + _CHANGED), others, shown)
        return {**row, "input_ids": shown, "target_ids": tokens, "loss_weights": chosen.astype(np.float32)}
