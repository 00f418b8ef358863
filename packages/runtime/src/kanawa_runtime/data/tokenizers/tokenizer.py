"""What a tokenizer promises."""

import abc
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.config import Configurable

from kanawa_runtime.runs.tokenizer_file import TokenizerError, tokenizer_bytes


class Tokenizer(Configurable):
    """Maps bytes to int32 ids without loss.

    Text never produces the special ids `pad_id`, `bos_id`, `eos_id`.
    """

    pad_id: int
    bos_id: int
    eos_id: int

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """One more than the largest id; known from the config alone."""

    @property
    @abc.abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """The bytes each id stands for, [vocab_size]; empty for special and unused ids."""

    @abc.abstractmethod
    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the ids of `text`, int32 [tokens]; a string is encoded as UTF-8."""

    def encode_each(self, texts: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yields what `encode` returns of each text; some libraries are faster at several at once."""
        return map(self.encode, texts)

    def encode_ranges(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of `text`, int32 [tokens], and which of its characters each covers, int64 [tokens, 2].

        Ranges are [begin, end). Tokens that share the bytes of a character all cover it.
        """
        ids = self.encode(text)
        # The character that each byte belongs to, and one more for the end.
        sizes = [len(as_bytes(character)) for character in text]
        character = np.append(np.repeat(np.arange(len(text)), sizes), len(text))
        ends = np.cumsum(self.byte_lengths[ids], dtype=np.int64)
        begins = ends - self.byte_lengths[ids]
        return ids, np.stack([character[begins], character[np.maximum(ends - 1, begins)] + 1], axis=1)

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns what was learned, as JSON values; `cfg.build(state=...)` restores it."""

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What a prompt begins with."""
        return (self.bos_id,)

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """What a text that is read whole ends with, as encoders have it."""
        return ()

    def encode_whole(self, text: str, second: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of a text, or of two in one, as a model reads them whole, and each token's type, int32."""
        parts = [self.prefix_ids, self.encode(text), self.suffix_ids]
        parts += [] if second is None else [self.encode(second), self.suffix_ids]
        ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
        return ids, np.zeros(len(ids), np.int32)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer; the first one ends documents."""
        return (self.eos_id,)

    @functools.cached_property
    def known(self) -> np.ndarray:
        """Whether each id stands for text or is special, bool [vocab_size]: others never occur, and are never drawn."""
        known = self.byte_lengths > 0
        known[[self.pad_id, self.bos_id, self.eos_id]] = True
        return known

    @property
    def special_names(self) -> Mapping[int, str]:
        """How each special id is written where it has to be, such as in grammars; text never produces it."""
        return {}

    def folder_files(self) -> dict[str, bytes]:
        """Returns the files of a model folder in which other libraries find this tokenizer; {} where there are none."""
        return {}

    @property
    def learns(self) -> bool:
        """Whether `fit` learns from documents."""
        return type(self).fit is not Tokenizer.fit

    def fit(self, documents: Iterable[bytes]) -> "Tokenizer":
        """Returns a tokenizer learned from `documents`; itself where there is nothing to learn."""
        del documents
        return self

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of `ids`; special ids vanish.

        Raises TokenizerError for an id out of range.
        """
        tokens = self.tokens
        chosen = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64).tolist()
        outside = [i for i in chosen if not 0 <= i < len(tokens)]
        if outside:
            message = f"token id {outside[0]} is outside the vocabulary: valid ids are 0 to {len(tokens) - 1}"
            raise TokenizerError(message)
        return b"".join([tokens[i] for i in chosen])

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`; bytes that aren't UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """Bytes each id stands for, int32 [vocab_size]; 0 for special ids."""
        return np.array([len(token) for token in self.tokens], np.int32)

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the config and everything learned."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Returns the tokenizer as JSON text that `tokenizer_from_bytes` reads."""
        return tokenizer_bytes(self.config, self.state())

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer to `path` as JSON."""
        Path(path).write_bytes(self.to_bytes())


def as_bytes(text: bytes | str) -> bytes:
    """Returns UTF-8 bytes; lone surrogates pass, so no string is refused."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
