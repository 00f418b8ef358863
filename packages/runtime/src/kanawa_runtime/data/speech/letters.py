"""The tokenizer of models whose ids are letters, places of an alphabet; the id after the last letter is no text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class Letters(Tokenizer):
    """Each letter of `alphabet` is an id; letters of a text that it lacks vanish."""

    class Config(Tokenizer.Config):
        alphabet: str = "abcdefghijklmnopqrstuvwxyz' "

    def __init__(self, cfg: Config, state: dict[str, Any] | None = None) -> None:
        super().__init__(cfg)
        del state
        self.pad_id = self.bos_id = self.eos_id = len(cfg.alphabet)

    @property
    def vocab_size(self) -> int:
        """The letters, and one id that is no text."""
        return len(self.config.alphabet) + 1

    @property
    def tokens(self) -> Sequence[bytes]:
        """The letters in UTF-8."""
        return [*(letter.encode() for letter in self.config.alphabet), b""]

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the places of a text's letters."""
        letters = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        found = [self.config.alphabet.find(letter) for letter in letters.lower()]
        return np.array([place for place in found if place >= 0], np.int32)

    def state(self) -> dict[str, Any]:
        """Returns nothing: nothing is learned."""
        return {}
