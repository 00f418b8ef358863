"""Stateless pseudo-random permutations: a function of integers only, on any NumPy and machine.

`numpy.random.Generator` may change its streams between releases (NEP 19), which would change the
order of a run when it resumes on another version. Sorting hashed indices can't change.
"""

import numpy as np

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(words: np.ndarray) -> np.ndarray:
    """Returns splitmix64's finaliser of each uint64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = words.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def stream_key(*words: int) -> int:
    """Returns a 64-bit key that depends on every integer in `words` and on their order."""
    key = 0
    for word in words:
        key = _mix_one(((key ^ word) + _GAMMA) & _MASK)
    return key


def _mix_one(word: int) -> int:
    # `mix` for one word: NumPy's cost per call would exceed that of a short row.
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def random_words(count: int, *key: int) -> np.ndarray:
    """Returns `count` uniform uint64 words for the stream `key`."""
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return mix(counters + np.uint64(stream_key(*key)))


def permutation(count: int, *key: int) -> np.ndarray:
    """Returns a permutation of `range(count)`, int64, for the stream `key`."""
    return np.argsort(random_words(count, *key), kind="stable").astype(np.int64)
