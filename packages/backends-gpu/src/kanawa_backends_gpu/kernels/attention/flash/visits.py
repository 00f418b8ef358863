"""Which blocks of keys a block of queries visits, and which queries a block of keys: the rest is never loaded.

Legend: R rows of the batch, or 1 where all are alike; N blocks that own programs, M blocks they may visit.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.attention.operands import kv_positions, q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.mask_reach import Range, Ranges, predicates_of, reach
from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.operation import Operands

Array = Any


class BlockMap(NamedTuple):
    """Of each block of queries and block of keys, bool [R, query blocks, key blocks].

    Attributes:
        seen: false only where no score counts for certain.
        whole: true only where every score counts for certain, and both blocks are full.
    """

    seen: Array
    whole: Array


@dataclasses.dataclass(frozen=True)
class Visits:
    """What each block visits, as arrays that a kernel reads.

    Attributes:
        bounds: int32 [R, N, 4]. In intervals: first seen, first whole, end of the whole ones that follow it, end of the
            seen. In lists: 0, 0, how many are whole, how many are seen.
        order: int32 [R, N, M], the blocks to visit, whole ones first; None in intervals, where block j is j.
        phases: of the three stretches between bounds, which may hold any block: partly, wholly, partly masked.
    """

    bounds: Array
    order: Array | None
    phases: tuple[bool, bool, bool]

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays by name, as operands of a kernel."""
        return {"bounds": self.bounds} | ({} if self.order is None else {"order": self.order})


def block_map(problem: AttentionProblem, operands: Operands, queries: int, keys: int) -> BlockMap:
    """Returns the map for blocks of `queries` by `keys`; NumPy's where it is known when compiling."""
    static = problem.has_default_positions and not _needs_arrays(problem.mask)
    xp = np if static else jnp
    p = problem
    spans = {
        "q": _span(_positions(p.q_length) if static else q_positions(p, operands), queries, 2, xp),
        "k": _span(_positions(p.kv_length) if static else kv_positions(p, operands), keys, 1, xp),
    }
    if p.has_segments:
        spans["q_segments"] = _span(operands["q_segment_ids"], queries, 2, xp)
        spans["k_segments"] = _span(operands["kv_segment_ids"], keys, 1, xp)
    exact = _Exact(p, operands, queries, keys)
    prefix = operands["prefix_lengths"][:, None, None] if p.mask.needs_prefix else None
    predicates = {name: exact.of(name) for name in predicates_of(p.mask)}
    result = BlockMap(*reach(p.mask, Ranges(**spans, prefix=prefix, predicates=predicates)))
    ends = _block_ends(p.kv_length, keys)
    exists = np.ones((1, -(-p.q_length // queries), ends.size), bool)
    full = (ends <= p.kv_length)[None, None] & (_block_ends(p.q_length, queries) <= p.q_length)[None, :, None]
    if p.has_kv_lengths:
        lengths = operands["kv_lengths"][:, None, None]
        exists = exists & ((ends - keys)[None, None] < lengths)
        full = full & (ends[None, None] <= lengths)
    return BlockMap(result.seen & exists, result.whole & full)


def visits(blocks: BlockMap, mask: MaskSpec) -> Visits:
    """Returns the visits of queries' blocks to keys; of keys' blocks to queries from the transposed map."""
    seen, whole = blocks
    xp = np if isinstance(seen, np.ndarray) else jnp
    count = seen.shape[-1]
    index = np.arange(count, dtype=np.int32)[None, None]
    if has_holes(mask):
        rank = xp.where(whole, 0, xp.where(seen, 1, 2))
        order = xp.argsort(rank, axis=-1, stable=True).astype(np.int32)
        ends = [xp.sum(x, axis=-1).astype(np.int32) for x in (whole, seen)]
        zero = xp.zeros_like(ends[0])
        return Visits(xp.stack([zero, zero, *ends], axis=-1), order, (False, True, True))
    first, end = _first(seen, index, count, xp), count - _first(seen[..., ::-1], index, count, xp)
    # Nothing seen: both come out as "none", from 0 to 0.
    nothing = ~xp.any(seen, axis=-1)
    first, end = xp.where(nothing, 0, first), xp.where(nothing, 0, end)
    whole_first = xp.minimum(_first(whole, index, count, xp), end)
    after = (index >= whole_first[..., None]) & ~whole
    whole_end = xp.maximum(xp.minimum(_first(after, index, count, xp), end), whole_first)
    # Blocks of owners that see none wholly belong to the stretch before or after: whichever leaves one unused.
    partly = [xp.where(whole_first < whole_end, x, here) for here in (first, end) for x in (whole_first, whole_end)]
    choices = [xp.stack([first, *pair, end], axis=-1).astype(np.int32) for pair in (partly[:2], partly[2:])]
    if xp is not np:
        return Visits(choices[0], None, (True, True, True))
    return min((Visits(bounds, None, _entered(bounds)) for bounds in choices), key=lambda v: sum(v.phases))


def _entered(bounds: np.ndarray) -> tuple[bool, bool, bool]:
    before, whole, after = (bool(np.any(bounds[..., i] < bounds[..., i + 1])) for i in range(3))
    return before, whole, after


def transposed(blocks: BlockMap) -> BlockMap:
    """Returns the map with queries and keys exchanged."""
    return BlockMap(*(x.swapaxes(1, 2) for x in blocks))


def has_holes(mask: MaskSpec) -> bool:
    """True where blocks between the first and the last seen may be empty, so that visits are listed."""
    return bool(mask.predicates or mask.any_of)


def _needs_arrays(mask: MaskSpec) -> bool:
    inner = (member for group in mask.any_of for member in group)
    return bool(mask.segments or mask.prefix or mask.predicates) or any(map(_needs_arrays, inner))


def _positions(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)[None]


def _block_ends(length: int, size: int) -> np.ndarray:
    return (np.arange(-(-length // size), dtype=np.int32) + 1) * size


def _span(numbers: Array, size: int, axis: int, xp: Any) -> Range:
    blocks = _in_blocks(numbers, size, xp)
    return xp.expand_dims(xp.min(blocks, axis=-1), axis), xp.expand_dims(xp.max(blocks, axis=-1), axis)


def _in_blocks(numbers: Array, size: int, xp: Any) -> Array:
    """Returns [R, length] as [R, blocks, size]; a short last block repeats its last number."""
    rows, length = numbers.shape
    count = -(-length // size)
    padded = xp.pad(numbers, ((0, 0), (0, count * size - length)), mode="edge")
    return padded.reshape(rows, count, size)


def _first(x: Array, index: np.ndarray, none: int, xp: Any) -> Array:
    """Returns the first true place along the last axis, `none` where there is none."""
    return xp.min(xp.where(x, index, none), axis=-1)


@dataclasses.dataclass(frozen=True)
class _Exact:
    """Evaluates a predicate on every pair of a block: XLA fuses it with the reduction, so no pair is stored."""

    problem: AttentionProblem
    operands: Operands
    queries: int
    keys: int

    def of(self, name: str) -> BlockMap:
        p = self.problem
        q = _in_blocks(q_positions(p, self.operands), self.queries, jnp)
        k = _in_blocks(kv_positions(p, self.operands), self.keys, jnp)
        lone = MaskSpec(predicates=(name,))
        flat = [x.reshape(x.shape[0], -1) for x in (q, k)]
        pairs = (max(x.shape[0] for x in flat), *(x.shape[1] for x in flat))
        # A predicate of one side alone has a dimension of 1 on the other.
        allowed = lone.allowed(*flat)
        counts = jnp.broadcast_to(True if allowed is None else allowed, pairs)
        split = counts.reshape(pairs[0], *q.shape[1:], *k.shape[1:])
        return BlockMap(jnp.any(split, axis=(2, 4)), jnp.all(split, axis=(2, 4)))


def as_jax(visited: Visits) -> Visits:
    """Returns the visits with arrays of JAX's."""
    order = None if visited.order is None else jnp.asarray(visited.order)
    return dataclasses.replace(visited, bounds=jax.numpy.asarray(visited.bounds), order=order)
