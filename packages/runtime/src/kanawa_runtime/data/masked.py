"""Rows for models that see both sides: some tokens of another source's rows are hidden and must be predicted."""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from kanawa.config import REQUIRED, Count, Fraction, to_json
from kanawa.contracts.data import DataSource, Split, Tokenizer

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.permutation import random_words

#: What BERT does with a chosen token (arXiv:1810.04805, section 3.1): hide 80 %, change 10 %, keep 10 %.
_HIDDEN, _CHANGED = 0.8, 0.1


def _fractions(count: int, *key: int) -> np.ndarray:
    """Returns `count` numbers from 0 to below 1: the upper 53 bits of the stream's words, which a double holds."""
    return (random_words(count, *key) >> np.uint64(11)) * 2.0**-53


class MaskedTokens(DataSource):
    """Rows of `source`, at this one's length, in which some tokens are chosen and most of the chosen are hidden.

    Each token is chosen with probability `share`. `target_ids` are the row's own tokens, weighed 1 where one was
    chosen and 0 elsewhere. A hidden token is the id `mask_id`, by default one more than the source's largest, so that
    text never makes it.
    """

    class Config(DataSource.Config):
        source: DataSource.Config = REQUIRED
        share: Fraction = 0.15
        mask_id: Count | None = None

        def check(self) -> list[str]:
            """Returns what is wrong with the share."""
            return [] if 0.0 < self.share < 1.0 else [f"share is {self.share}, expected a number between 0 and 1"]

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the tokenizer of the source."""
            self.source.set_tokenizer_file(file)

    @functools.cached_property
    def _source(self) -> DataSource:
        source: DataSource = self.config.source.clone().set(sequence_length=self.config.sequence_length).build()
        return source

    @property
    def packed(self) -> bool:
        """The source's."""
        return self._source.packed

    @property
    def source_names(self) -> tuple[str, ...]:
        """The source's."""
        return self._source.source_names

    @property
    def num_rows(self) -> int | None:
        """The source's."""
        return self._source.num_rows

    def account(self) -> Mapping[str, Any]:
        """Returns the source's."""
        return self._source.account()

    def saved(self, row: int) -> dict[str, Any]:
        """Returns the source's."""
        return self._source.saved(row)

    def resume(self, row: int, saved: Mapping[str, Any]) -> None:
        """Resumes the source."""
        self._source.resume(row, saved)

    def changes(self, first: int, end: int) -> Sequence[Mapping[str, Any]]:
        """Returns the source's."""
        return self._source.changes(first, end)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The source's."""
        return self._source.tokenizer

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden token."""
        return self._source.vocab_size if self.config.mask_id is None else self.config.mask_id

    @property
    def vocab_size(self) -> int:
        """The source's, with room for the mask."""
        return max(self._source.vocab_size, self.mask_id + 1)

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the source and what is hidden of it."""
        settings = to_json(self.config)
        settings.pop("source", None)
        parts = [self._source.digest, self.mask_id, settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

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

    def held_out(self) -> "MaskedTokens | None":
        """Returns the source's held-out rows with tokens of theirs hidden, the same ones at each evaluation."""
        return self._hiding(self._source.held_out())

    def once(self, split: Split | None = None) -> "MaskedTokens | None":
        """Returns the source's rows of a split, or all, once, with tokens of theirs hidden."""
        return self._hiding(self._source.once(split))

    def _hiding(self, rows: DataSource | None) -> "MaskedTokens | None":
        return None if rows is None else self.config.clone().set(source=rows.config).build()

    def documents(self, split: Split) -> Iterable[bytes] | None:
        """Returns the source's."""
        return self._source.documents(split)
