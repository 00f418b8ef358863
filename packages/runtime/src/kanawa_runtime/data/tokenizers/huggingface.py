"""Tokenizers that came with a model: a Hugging Face `tokenizer.json`, run by the `tokenizers` library."""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from kanawa.errors import INTERRUPTIONS

from kanawa_runtime.data.tokenizers.byte_alphabet import BYTE_OF
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer, as_bytes
from kanawa_runtime.runs.tokenizer_file import CHAT_TEMPLATE, GENERATION, TokenizerError

#: Texts that the library encodes at once.
_BATCH_TEXTS = 64
#: Decoders by how they spell a space or a byte in a token.
_BYTE_LEVEL, _WORD_PIECE, _WORD_END = "ByteLevel", "WordPiece", "BPEDecoder"


class HuggingFaceTokenizer(Tokenizer):
    """Encodes as the model's own tokenizer does, special tokens written out in the text included.

    `state` holds the texts of the files it is made of, so that a run keeps it whole and an export gives it back
    unchanged, and what `special_ids` found in them.
    """

    def __init__(self, cfg: Tokenizer.Config, state: dict[str, Any] | None = None) -> None:
        super().__init__(cfg)
        if state is None:
            message = "a Hugging Face tokenizer is read, not made: set data.tokenizer_file to its folder instead"
            raise TokenizerError(message)
        self._state = state
        self._special: dict[str, Any] = state["special"]
        content = json.loads(state["files"]["tokenizer.json"])
        content["added_tokens"] = content.get("added_tokens") or []
        limit = self._special["limit"]
        if limit is not None:
            # Gemma 3's has a token for images that its text models have no row for: written in a text it is text.
            content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] < limit or not t["special"]]
        self._added = {int(token["id"]): token for token in content["added_tokens"]}
        self._library = _library_tokenizer(content)

    @functools.cached_property
    def _vocabulary(self) -> dict[int, str]:
        return {index: token for token, index in self._library.get_vocab(with_added_tokens=True).items()}

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id; a model's own size may be larger, for padding."""
        return max(self._vocabulary) + 1

    @functools.cached_property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of each id, [vocab_size]; as its decoder spells them, in the middle of a text."""
        kinds = _kinds(json.loads(self._library.to_str())["decoder"])
        return tuple(self._bytes_of(index, kinds) for index in range(self.vocab_size))

    def _bytes_of(self, index: int, kinds: set[str]) -> bytes:
        added = self._added.get(index)
        if added is not None:
            return b"" if added["special"] else added["content"].encode()
        token = self._vocabulary.get(index, "")
        if _BYTE_LEVEL in kinds:
            return bytes(BYTE_OF[c] for c in token) if all(c in BYTE_OF for c in token) else token.encode()
        if _WORD_PIECE in kinds:
            return token[2:].encode() if token.startswith("##") else f" {token}".encode()
        if _WORD_END in kinds:
            return token.replace("</w>", " ").encode()
        if "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x"):
            # A byte without a piece of its own, spelled <0x0A>.
            return bytes.fromhex(token[3:5])
        # SentencePiece writes a space as U+2581.
        return token.replace("▁", " ").encode()

    @functools.cached_property
    def special_names(self) -> Mapping[int, str]:
        """The contents of its special added tokens."""
        return {index: token["content"] for index, token in self._added.items() if token["special"]}

    @functools.cached_property
    def known(self) -> np.ndarray:
        """Whether each id is a token, bool [vocab_size]."""
        known = np.zeros(self.vocab_size, bool)
        known[list(self._vocabulary)] = True
        return known

    @property
    def eos_id(self) -> int:  # type: ignore[override]
        """What ends a document; raises TokenizerError where no file of the folder says."""
        if self._special["eos"] is None:
            message = (
                "the tokenizer's folder names no end token (eos_token in tokenizer_config.json, eos_token_id in "
                "generation_config.json or config.json): add one, so that documents can end"
            )
            raise TokenizerError(message)
        return int(self._special["eos"])

    @property
    def bos_id(self) -> int:  # type: ignore[override]
        """What begins a document: the end of the one before where the model has no token of its own for it."""
        begin = self._special["bos"]
        return self.eos_id if begin is None else int(begin)

    @property
    def pad_id(self) -> int:  # type: ignore[override]
        """What fills rows; no loss and no attention falls on it, so any id serves."""
        pad = self._special["pad"]
        return 0 if pad is None else int(pad)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What its post-processor puts before a text; some models want nothing there."""
        return self._around[0]

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """What its post-processor puts after a text: BERT's separator."""
        return self._around[1]

    @functools.cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        whole = self._library.encode("a", add_special_tokens=True).ids
        bare = self._library.encode("a", add_special_tokens=False).ids
        places = range(len(whole) - len(bare) + 1)
        start = next((i for i in places if whole[i : i + len(bare)] == bare), 0)
        return tuple(whole[:start]), tuple(whole[start + len(bare) :])

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: chat models have several."""
        return tuple(self._special["stop"])

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the ids of `text`, int32, without what a prompt begins with; bytes that aren't UTF-8 are replaced."""
        string = as_bytes(text).decode("utf-8", "replace")
        return np.array(self._library.encode(string, add_special_tokens=False).ids, np.int32)

    def encode_each(self, texts: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yields the ids of each text, int32; the library finds no offsets then, and uses several cores if it may."""
        strings = (as_bytes(text).decode("utf-8", "replace") for text in texts)
        while some := list(itertools.islice(strings, _BATCH_TEXTS)):
            for encoded in self._library.encode_batch_fast(some, add_special_tokens=False):
                yield np.array(encoded.ids, np.int32)

    def encode_whole(self, text: str, second: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """As its post-processor has it."""
        encoded = self._library.encode(text, second, add_special_tokens=True)
        return np.array(encoded.ids, np.int32), np.array(encoded.type_ids, np.int32)

    def encode_ranges(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of `text` and the characters that each covers; see `Tokenizer.encode_ranges`."""
        encoded = self._library.encode(as_bytes(text).decode("utf-8", "replace"), add_special_tokens=False)
        return np.array(encoded.ids, np.int32), np.array(encoded.offsets, np.int64).reshape(-1, 2)

    def for_chats(self, template: str, stop_id: int | None) -> "HuggingFaceTokenizer":
        """Returns the same tokenizer, with this chat template, and with one more id that ends an answer."""
        files, special = dict(self._state["files"]), dict(self._special)
        files[CHAT_TEMPLATE] = template
        if stop_id is not None and stop_id not in special["stop"]:
            special["stop"] = sorted([*special["stop"], stop_id])
            generation = json.loads(files.get(GENERATION, "{}"))
            files[GENERATION] = json.dumps({**generation, "eos_token_id": special["stop"]}, indent=1)
        made: HuggingFaceTokenizer = self.config.clone().build(state={"files": files, "special": special})
        return made

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`, special ones left out; raises TokenizerError for an id out of range."""
        chosen = [int(i) for i in ids]
        outside = [i for i in chosen if not 0 <= i < self.vocab_size]
        if outside:
            message = f"token id {outside[0]} is outside the vocabulary: valid ids are 0 to {self.vocab_size - 1}"
            raise TokenizerError(message)
        return str(self._library.decode(chosen, skip_special_tokens=True))

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over what changes ids; defaults for generation don't."""
        parts = [self._state["files"]["tokenizer.json"], self._special]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def state(self) -> dict[str, Any]:
        """Returns the texts of its files and its special ids."""
        return self._state

    def folder_files(self) -> dict[str, bytes]:
        """Returns the files it was read from, unchanged."""
        return {name: text.encode() for name, text in self._state["files"].items()}


def _library_tokenizer(content: dict[str, Any]) -> Any:
    """Returns the library's object, which neither cuts nor pads; raises TokenizerError where it can't be had."""
    try:
        from tokenizers import Tokenizer as LibraryTokenizer
    except ModuleNotFoundError as error:
        message = 'reading a tokenizer.json needs the tokenizers library: pip install "kanawa[hf]"'
        raise TokenizerError(message) from error
    try:
        made = LibraryTokenizer.from_str(json.dumps(content))
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # The library raises nothing more specific, and its panics are no Exceptions.
        message = f"the tokenizers library can't read it: {error}"
        raise ValueError(message) from error
    made.no_truncation()
    made.no_padding()
    return made


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Returns the types of a decoder and of those it is composed of."""
    if decoder is None:
        return set()
    inner = (_kinds(part) for part in decoder.get("decoders", ()))
    return {decoder["type"]}.union(*inner)
