"""The bar a language model has to clear: a table of byte trigrams, smoothed by Kneser-Ney.

It reads the same training text, predicts the same documents, end included, and is scored in nats
per byte of text, so its number compares with a model's whatever the tokenizer.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

_SYMBOLS = 257
#: Begins documents as context and ends them as prediction.
_END = 256


class ByteTrigram:
    """P(c | a, b) over bytes and the end of a document, interpolated down to P(c | b) and P(c).

    Interpolated Kneser-Ney (Chen and Goodman, 1998, section 2.7), with the discount of each count
    1, 2 and more estimated from counts of counts.
    """

    def __init__(self, documents: Iterable[bytes]) -> None:
        """Counts `documents`; takes about 2 s for 10 MB, and at most 0.5 GB whatever the size."""
        counts = np.zeros(_SYMBOLS**3, np.int64)
        for chunk in _in_chunks(documents):
            counts += np.bincount(_trigrams(chunk), minlength=_SYMBOLS**3)
        cube = counts.reshape(_SYMBOLS, _SYMBOLS, _SYMBOLS)
        # A lower order counts in how many contexts a symbol was seen: its job is contexts never seen.
        pairs = (cube > 0).sum(0)
        singles = (pairs > 0).sum(0)[None]
        uniform = np.full((1, _SYMBOLS), 1 / _SYMBOLS)
        unigram = _interpolated(singles, uniform, _discounts(singles))
        bigram = _interpolated(pairs, unigram, _discounts(pairs))
        discounts = _discounts(cube)
        self._probabilities = np.empty(cube.shape, np.float32)
        for first in range(_SYMBOLS):  # One plane at a time: the cube in float64 several times over is 1 GB.
            self._probabilities[first] = _interpolated(cube[first], bigram, discounts)

    def nats(self, documents: Iterable[bytes]) -> float:
        """Returns the negative log-likelihood of `documents`, ends included."""
        total = 0.0
        for chunk in _in_chunks(documents):
            total -= float(np.log(self._probabilities.ravel()[_trigrams(chunk)], dtype=np.float64).sum())
        return total

    def nats_per_byte(self, documents: Iterable[bytes]) -> float:
        """Returns `nats` divided by the bytes of text; raises ValueError if there are none."""
        num_bytes = 0

        def counted() -> Iterator[bytes]:
            nonlocal num_bytes
            for document in documents:
                num_bytes += len(document)
                yield document

        nats = self.nats(counted())
        if num_bytes == 0:
            message = "nats per byte of no text is undefined: give at least one document that isn't empty"
            raise ValueError(message)
        return nats / num_bytes


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Returns what to take from counts of 0, 1, 2, and 3 and more, by counts of counts."""
    n1, n2, n3, n4 = (max(1, int((counts == n).sum())) for n in range(1, 5))
    base = n1 / (n1 + 2 * n2)
    estimates = [1 - 2 * base * n2 / n1, 2 - 3 * base * n3 / n2, 3 - 4 * base * n4 / n3]
    # Tiny corpora give estimates outside of what a count can lose.
    return np.concatenate([[0.0], np.clip(estimates, [0.1] * 3, [0.9, 1.9, 2.9])])


def _interpolated(counts: np.ndarray, below: np.ndarray, discounts: np.ndarray) -> np.ndarray:
    """Returns P [contexts, symbols]: discounted counts, the mass taken going to `below`."""
    taken = discounts[np.minimum(counts, 3)]
    totals = counts.sum(-1, keepdims=True)
    # A context never seen leaves all of its mass to the order below.
    freed = np.where(totals > 0, taken.sum(-1, keepdims=True), 1)
    probabilities: np.ndarray = (counts - taken + freed * below) / np.maximum(totals, 1)
    return probabilities


def _in_chunks(documents: Iterable[bytes], limit_bytes: int = 1 << 22) -> Iterable[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size >= limit_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _trigrams(documents: Sequence[bytes]) -> np.ndarray:
    """Returns a table index for each byte and document end, int64; two ends begin a document."""
    end = np.array([_END], np.int64)
    parts: list[np.ndarray] = []
    for document in documents:
        symbols = np.concatenate([end, end, np.frombuffer(document, np.uint8).astype(np.int64), end])
        parts.append((symbols[:-2] * _SYMBOLS + symbols[1:-1]) * _SYMBOLS + symbols[2:])
    return np.concatenate(parts)
