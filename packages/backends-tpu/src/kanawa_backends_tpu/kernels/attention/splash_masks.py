"""Splash's masks as bands: each query sees a range of keys, so that blocks are known by their first and last queries.

Splash asks every block of a mask whether any or all of its elements are true, twice: at 32,768 queries and keys seconds
of a processor, for each size of blocks. Blocks of one value answer without looking.
"""

from typing import Any

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from kanawa.kernels.masks import MaskSpec


class _Uniform(np.ndarray):
    """A block of one value, which answers for all of them."""

    def any(self, *args: Any, **kwargs: Any) -> Any:
        """Returns whether any element is true."""
        return bool(self.flat[0]) if not args and not kwargs else super().any(*args, **kwargs)

    def all(self, *args: Any, **kwargs: Any) -> Any:
        """Returns whether all elements are true."""
        return bool(self.flat[0]) if not args and not kwargs else super().all(*args, **kwargs)


_NONE, _EVERY = np.array(False), np.array(True)


class _Band:
    """Answers from the first and the last key of each query, neither of which ever falls from one query to the next."""

    first: np.ndarray
    last: np.ndarray
    shape: Any

    def __getitem__(self, index: Any) -> np.ndarray:
        (q, q_end, _), (k, k_end, _) = (part.indices(size) for part, size in zip(index, self.shape, strict=True))
        size = q_end - q, k_end - k
        if k_end - k == 1:
            # The queries that see one key are neighbours too.
            column = np.zeros(size, np.bool_)
            seen = slice(np.searchsorted(self.last, k), np.searchsorted(self.first, k, "right"))
            column[max(0, seen.start - q) : max(0, seen.stop - q)] = True
            return column
        if self.last[q_end - 1] < k or self.first[q] >= k_end:
            return _uniform(_NONE, size)
        if self.first[q_end - 1] <= k and self.last[q] >= k_end - 1:
            return _uniform(_EVERY, size)
        keys = np.arange(k, k_end)
        return (self.first[q:q_end, None] <= keys) & (keys <= self.last[q:q_end, None])


def _uniform(value: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.broadcast_to(value, size).view(_Uniform)


class _Causal(_Band, masks.CausalMask):
    pass


class _Local(_Band, masks.LocalMask):
    pass


class _Chunked(_Band, masks.ChunkedCausalMask):
    pass


def splash_mask(mask: MaskSpec, shape: tuple[int, int]) -> masks.Mask:
    """Returns the mask of [queries, keys] without segments, which splash takes as operands."""
    rows, keys = np.arange(shape[0]), shape[1]
    first, last = np.zeros_like(rows), np.minimum(rows, keys - 1) if mask.causal else np.full_like(rows, keys - 1)
    made: Any
    if mask.chunk is not None:
        made, first = _Chunked(shape, mask.chunk), rows // mask.chunk * mask.chunk
    elif mask.window is not None:
        left, right = mask.window
        made = _Local(shape, (left, 0 if mask.causal else right), offset=0)
        first = first if left is None else np.maximum(0, rows - left)
        last = last if mask.causal or right is None else np.minimum(rows + right, keys - 1)
    elif mask.causal:
        made = _Causal(shape)
    else:
        return masks.FullMask(shape)
    made.first, made.last = first, last
    return made  # type: ignore[no-any-return]
