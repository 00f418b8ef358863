"""A split of a corpus as one array of ids, and the tokenizer learned for it, through a cache.

The cache may be lost at any time. The key of an entry names everything it was derived from, so an entry never has to be
invalidated.
"""

import functools
import hashlib
import io
import json
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from kanawa.config import to_json
from kanawa.local_path import cache_folder

from kanawa_runtime.compile_cache import CheckedFiles
from kanawa_runtime.data.corpus import Corpus, Document, Split
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import tokenizer_from_bytes

_logger = logging.getLogger(__name__)

T = TypeVar("T")


def cache_key(*parts: str) -> str:
    """Returns a hex key that depends on every part."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cached(kind: str, key: str, build: Callable[[], bytes], parse: Callable[[bytes], T]) -> T:
    """Returns `parse` of the entry `kind/key`, building and storing it when absent or damaged.

    A folder that can't be written costs a warning and the time to build again, never the run.
    """
    files = CheckedFiles(cache_folder() / kind)
    payload = files.get(key)
    if payload is not None:
        try:
            return parse(payload)
        except (ValueError, KeyError, TypeError) as error:
            _logger.warning("cache entry %s/%s doesn't parse (%s); building it again", kind, key, error)
    payload = build()
    files.put(key, payload)
    return parse(payload)


#: Part of every key: raise it when the same inputs would give other entries.
_VERSION = "2"


class EncodedDocuments(NamedTuple):
    """Document d is `ids[offsets[d]:offsets[d + 1]]`: its begin token, its text, its end token."""

    ids: np.ndarray
    offsets: np.ndarray
    #: Bytes of all texts, as they were before encoding.
    num_bytes: int

    @property
    def num_predictions(self) -> np.ndarray:
        """Tokens each document asks for, int64 [documents]: all but its begin token."""
        return np.diff(self.offsets) - 1


def fitted_tokenizer(cfg: Tokenizer.Config, corpus: Corpus) -> Tokenizer:
    """Returns the tokenizer of `cfg`, learned from the training split of `corpus` only."""

    def learn() -> bytes:
        untrained: Tokenizer = cfg.clone().build()
        return untrained.fit(document.data for document in corpus.documents("train")).to_bytes()

    key = cache_key(_VERSION, json.dumps(to_json(cfg), sort_keys=True), corpus.digest)
    tokenizer: Tokenizer = cached("tokenizers", key, learn, tokenizer_from_bytes)
    return tokenizer


def encoded_documents(corpus: Corpus, split: Split, tokenizer: Tokenizer) -> EncodedDocuments:
    """Returns `split` of `corpus` in the ids of `tokenizer`."""
    key = cache_key(_VERSION, split, corpus.digest, tokenizer.digest)
    build = functools.partial(_encode, corpus, split, tokenizer)
    return cached("encoded", key, build, _parse)


def encode_all(documents: Sequence[Document], tokenizer: Tokenizer) -> EncodedDocuments:
    """Returns `documents` encoded, in uint16 where the vocabulary allows it."""
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    bos, eos = np.array([tokenizer.bos_id], dtype), np.array([tokenizer.eos_id], dtype)
    parts: list[np.ndarray] = []
    lengths = [0]
    for document in documents:
        ids = tokenizer.encode(document.data).astype(dtype)
        parts += [bos, ids, eos]
        lengths.append(len(ids) + 2)
    num_bytes = sum(len(document.data) for document in documents)
    return EncodedDocuments(np.concatenate(parts), np.cumsum(lengths), num_bytes)


def _encode(corpus: Corpus, split: Split, tokenizer: Tokenizer) -> bytes:
    encoded = encode_all(corpus.documents(split), tokenizer)
    buffer = io.BytesIO()
    np.savez(buffer, ids=encoded.ids, offsets=encoded.offsets, num_bytes=encoded.num_bytes)
    return buffer.getvalue()


def _parse(payload: bytes) -> EncodedDocuments:
    # Others may write to the cache's folder, and unpickling runs what it reads.
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        return EncodedDocuments(arrays["ids"], arrays["offsets"], int(arrays["num_bytes"]))
