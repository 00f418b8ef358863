"""What a tokenizer promises, and the file that holds one."""

import abc
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.config import Configurable, from_json, to_json
from kanawa.guarded_read import UnreadableFileError, guarded_bytes, parsed_json

from kanawa_runtime.data.errors import TokenizerError

_FORMAT = "kanawa-tokenizer-1"


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

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns what was learned, as JSON values; `cfg.build(state=...)` restores it."""

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What a prompt begins with."""
        return (self.bos_id,)

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
        content = {"format": _FORMAT, "config": to_json(self.config), "state": self.state()}
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer to `path` as JSON."""
        Path(path).write_bytes(self.to_bytes())


def tokenizer_from_bytes(content: bytes) -> Tokenizer:
    """Returns the tokenizer that `to_bytes` wrote; raises ValueError if it is none."""
    record = parsed_json(content)
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        given = record.get("format") if isinstance(record, dict) else type(record).__name__
        message = f"expected format {_FORMAT!r}, found {given!r}"
        raise ValueError(message)
    return from_json(record["config"]).build(state=record["state"])


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Returns the tokenizer saved at `path`, or of a Hugging Face folder or its `tokenizer.json`.

    Raises TokenizerError that names the file.
    """
    from kanawa_runtime.data.tokenizers.folder import MOST_TOKENIZER_BYTES, TOKENIZER, folder_state, unreadable

    path = Path(path)
    file = path / TOKENIZER if path.is_dir() else path
    if path.is_dir() and not os.path.lexists(file):
        raise TokenizerError(unreadable(path))
    try:
        content = guarded_bytes(file, path if path.is_dir() else None, most=MOST_TOKENIZER_BYTES)
        record = parsed_json(content)
        if not isinstance(record, dict) or "model" not in record:
            return tokenizer_from_bytes(content)
        from kanawa_runtime.data.tokenizers.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer.Config().build(state=folder_state(file.parent))
    except OSError as error:
        message = (
            f"can't read the tokenizer {file}: {error.strerror or error}; a run keeps its own: "
            "--set data.tokenizer_file=RUN/tokenizer.json"
        )
        raise TokenizerError(message) from error
    except UnreadableFileError as error:
        raise TokenizerError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        message = f"{file} isn't a saved tokenizer: {reason}"
        raise TokenizerError(message) from error


def as_bytes(text: bytes | str) -> bytes:
    """Returns UTF-8 bytes; lone surrogates pass, so no string is refused."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
