"""What callers of a data source need of its tokenizer; anything with these members fits."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np


class Tokenizer(Protocol):
    """Between text and token ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a text when a model draws them."""

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the ids of `text`, int32 [tokens]."""

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`."""

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer to one file; the trainer keeps it in the run, since a learned one can't be relearned."""
