"""Which blocks of queries and keys there are, and in which order a kernel visits them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from kanawa.kernels.mask_reach import Ranges, predicates_of, reach
from kanawa.kernels.masks import MaskSpec

_LANES = 128
#: What a step of the grid costs beside its matmuls, in queries or keys of a block: small blocks pay it more often.
_STEP = 96


@dataclass(frozen=True)
class Side:
    """The queries, or the keys: `length` of them, padded to whole blocks, a block being whole parts."""

    length: int
    block: int
    part: int

    @property
    def blocks(self) -> int:
        """Blocks of this side."""
        return -(-self.length // self.block)

    @property
    def padded(self) -> int:
        """Length with padding."""
        return self.blocks * self.block

    @property
    def parts(self) -> int:
        """Parts of a block."""
        return self.block // self.part


def side(length: int, largest: int, largest_part: int) -> Side:
    """Returns blocks of at most `largest` for a length, which may be any: padding costs as much as what is needed.

    Where the mask cuts through a block, its parts are looked at one by one.
    """
    sizes = range(_LANES, max(_LANES, largest) + 1, _LANES)
    block = min(sizes, key=lambda size: (-(-length // size) * (size + _STEP), -size))
    return Side(length, block, divisor(block, largest_part))


@dataclass(frozen=True)
class Tiles:
    """Blocks of queries by blocks of keys under a mask.

    Attributes:
        known: positions are 0, 1, 2, …, so that what the mask hides is known when compiling.
    """

    q: Side
    kv: Side
    mask: MaskSpec
    known: bool

    @cached_property
    def seen(self) -> np.ndarray:
        """Returns bool [blocks of queries, blocks of keys]: False where the mask hides all of a pair."""
        return self._reach()[0]

    @property
    def has_cut_blocks(self) -> bool:
        """True where the mask, padding or operands may hide a part of a block."""
        some, every = self._reach()
        mask = self.mask
        dynamic = not self.known or mask.needs_segments or mask.needs_prefix or predicates_of(mask)
        # A block that sees, or is seen by, nothing is visited all the same (`steps`), and all of it is hidden.
        alone = not (some.any(axis=0).all() and some.any(axis=1).all())
        return bool(dynamic) or alone or self.kv.padded != self.kv.length or bool((some & ~every).any())

    def _reach(self) -> tuple[np.ndarray, np.ndarray]:
        shape = (self.q.blocks, self.kv.blocks)
        if not self.known:
            return np.ones(shape, bool), np.zeros(shape, bool)
        first_q = np.arange(self.q.blocks)[:, None] * self.q.block
        first_k = np.arange(self.kv.blocks)[None, :] * self.kv.block
        # Positions that are padding aren't there: the last block ends where its side does.
        q = (first_q, np.minimum(first_q + self.q.block, self.q.length) - 1)
        k = (first_k, np.minimum(first_k + self.kv.block, self.kv.length) - 1)
        some, every = reach(self.mask, Ranges(q, k))
        return np.broadcast_to(some, shape), np.broadcast_to(every, shape)

    def steps(self, queries_first: bool) -> "Steps":
        """Returns the pairs to visit, block of queries by block of queries, or of keys by keys."""
        seen = self.seen.copy()
        # A block that sees or is seen by nothing still has an output, zero, which a visit writes.
        seen[~seen.any(axis=1), self.kv.blocks - 1] = True
        seen[0, ~seen.any(axis=0)] = True
        if queries_first:
            q, kv = np.nonzero(seen)
        else:
            kv, q = np.nonzero(seen.T)
        return Steps(q.astype(np.int32), kv.astype(np.int32))


@dataclass(frozen=True)
class Steps:
    """The block of queries and of keys of each step of a grid."""

    q: np.ndarray
    kv: np.ndarray

    def __len__(self) -> int:
        return len(self.q)

    def flags(self) -> np.ndarray:
        """Returns int32 a step: 1, 2 for the first and last visit of the queries' block, 4, 8 of the keys'."""
        first_q, last_q = _ends(self.q)
        first_kv, last_kv = _ends(self.kv)
        flags: np.ndarray = first_q + 2 * last_q + 4 * first_kv + 8 * last_kv
        return flags.astype(np.int32)

    def queries_done(self) -> np.ndarray:
        """Returns a step's block of queries among outputs written on the last visit: the next one to be done.

        An output's window moves only once it has been written, so that each block leaves the chip once.
        """
        _, last = _ends(self.q)
        done = np.nonzero(last)[0]
        upcoming = np.minimum(np.searchsorted(done, np.arange(len(self))), len(done) - 1)
        return self.q[done[upcoming]].astype(np.int32)


def _ends(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns bool arrays: is this the first, the last step with its block?"""
    first, last = np.zeros(len(blocks), bool), np.zeros(len(blocks), bool)
    first[np.unique(blocks, return_index=True)[1]] = True
    last[len(blocks) - 1 - np.unique(blocks[::-1], return_index=True)[1]] = True
    return first, last


def divisor(length: int, largest: int) -> int:
    """Returns the largest multiple of 128 up to `largest` that divides `length`, itself one."""
    return max(size for size in range(_LANES, max(_LANES, largest) + 1, _LANES) if length % size == 0)
