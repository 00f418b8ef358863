"""A split of a corpus as one array of ids, and the tokenizer learned for it, through a cache.

The cache may be lost at any time. The key of an entry names everything it was derived from, so an entry never has to be
invalidated.
"""

import functools
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from kanawa.config import to_json

from kanawa_runtime.data.corpus import Corpus, Document, Split
from kanawa_runtime.data.derived import cache_key, cached
from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import tokenizer_from_bytes

#: Part of every key: raise it when the same inputs would give other entries.
_VERSION = "2"


class Example(NamedTuple):
    """One example: `ids` int32 [tokens], at least two, and the weight of each as a target.

    The first id is no target. `weights` None weighs all others 1.
    """

    ids: np.ndarray
    weights: np.ndarray | None = None


class EncodedDocuments(NamedTuple):
    """Example d is `ids[offsets[d]:offsets[d + 1]]`; of text: a begin token, the text, an end token."""

    ids: np.ndarray
    offsets: np.ndarray
    #: Bytes of all texts, as they were before encoding; 0 where examples aren't plain text.
    num_bytes: int = 0
    #: The weight of each id as a target, float32 like `ids`; None is 1 everywhere.
    weights: np.ndarray | None = None

    @property
    def num_predictions(self) -> np.ndarray:
        """Tokens each example asks for, int64 [examples]: all but its first."""
        return np.diff(self.offsets) - 1


def fitted_tokenizer(cfg: Tokenizer.Config, corpora: Sequence[Corpus]) -> Tokenizer:
    """Returns the tokenizer of `cfg`, learned from the training splits of `corpora` only."""

    def learn() -> bytes:
        untrained: Tokenizer = cfg.clone().build()
        return untrained.fit(d.data for corpus in corpora for d in corpus.documents("train")).to_bytes()

    key = cache_key(_VERSION, json.dumps(to_json(cfg), sort_keys=True), *(corpus.digest for corpus in corpora))
    tokenizer: Tokenizer = cached("tokenizers", key, learn, tokenizer_from_bytes)
    return tokenizer


def encoded_documents(corpus: Corpus, split: Split, tokenizer: Tokenizer) -> EncodedDocuments:
    """Returns `split` of `corpus` in the ids of `tokenizer`."""
    key = cache_key(_VERSION, split, corpus.digest, tokenizer.digest)
    build = functools.partial(_encode, corpus, split, tokenizer)
    return cached("encoded", key, build, _parse)


def cached_examples(
    parts: Sequence[str], examples: Callable[[], Iterable[Example]], vocab_size: int
) -> EncodedDocuments:
    """Returns examples through the cache; `parts` name everything they depend on.

    Raises RowError where there is no example.
    """
    key = cache_key(_VERSION, *parts)
    return cached("encoded", key, lambda: _to_bytes(join(examples(), vocab_size)), _parse)


def text_example(document: Document, tokenizer: Tokenizer) -> Example:
    """Returns a document's ids between its begin and end tokens."""
    return Example(np.concatenate([[tokenizer.bos_id], tokenizer.encode(document.data), [tokenizer.eos_id]]))


def join(examples: Iterable[Example], vocab_size: int, num_bytes: int = 0) -> EncodedDocuments:
    """Returns examples as one, the ids in uint16 where the vocabulary allows it."""
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.int32
    parts: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    lengths = [0]
    for ids, weighed in examples:
        parts.append(ids.astype(dtype))
        if weighed is not None:
            weights.append(weighed.astype(np.float32))
        lengths.append(len(ids))
    if not parts:
        message = "there is no example to make rows from"
        raise RowError(message)
    together = np.concatenate(weights) if weights else None
    return EncodedDocuments(np.concatenate(parts), np.cumsum(lengths), num_bytes, together)


def _encode(corpus: Corpus, split: Split, tokenizer: Tokenizer) -> bytes:
    documents = list(corpus.documents(split))
    num_bytes = sum(len(document.data) for document in documents)
    return _to_bytes(join((text_example(d, tokenizer) for d in documents), tokenizer.vocab_size, num_bytes))


def _to_bytes(encoded: EncodedDocuments) -> bytes:
    buffer = io.BytesIO()
    arrays = {name: array for name, array in encoded._asdict().items() if array is not None}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _parse(payload: bytes) -> EncodedDocuments:
    # Others may write to the cache's folder, and unpickling runs what it reads.
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        weights = arrays.get("weights")
        return EncodedDocuments(arrays["ids"], arrays["offsets"], int(arrays["num_bytes"]), weights)
