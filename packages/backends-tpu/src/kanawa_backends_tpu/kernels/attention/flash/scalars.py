"""What a kernel knows before it loads anything: which blocks a step is of, and what their mask leaves.

Prefetched to scalar memory. Where segments, positions or prefixes are operands, so are the least and greatest of each
block and part, and of a predicate whether it allows some or all pairs of two parts: a step whose blocks share nothing
loads nothing and computes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from kanawa.kernels.attention import operands as given_operands
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.mask_reach import Range, Ranges, predicates_of, reach
from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.operation import Operands

from kanawa_backends_tpu.kernels.attention.flash.tiles import Side, Steps, Tiles

_LANES = 128
#: Segment ids of padding: unlike each other, and unlike any that a caller may give.
_NO_QUERY, _NO_KEY = -(2**31) + 1, -(2**31)


@dataclass(frozen=True)
class Vectors:
    """Positions and segment ids of every query and key, int32 [B, T] or [B, S], padded; None where not operands."""

    q_positions: jax.Array | None
    kv_positions: jax.Array | None
    q_segments: jax.Array | None
    kv_segments: jax.Array | None


def vectors(problem: AttentionProblem, operands: Operands, tiles: Tiles) -> Vectors:
    """Returns the operands that the mask compares, one row a row of the batch."""

    def rows(x: jax.Array, side: Side, padding: int | None) -> jax.Array:
        x = jnp.broadcast_to(x.astype(jnp.int32), (problem.batch, side.length))
        widths = ((0, 0), (0, side.padded - side.length))
        return jnp.pad(x, widths, mode="edge") if padding is None else jnp.pad(x, widths, constant_values=padding)

    segments, moved = problem.has_segments, not tiles.known
    return Vectors(
        q_positions=rows(given_operands.q_positions(problem, operands), tiles.q, None) if moved else None,
        kv_positions=rows(given_operands.kv_positions(problem, operands), tiles.kv, None) if moved else None,
        q_segments=rows(operands["q_segment_ids"], tiles.q, _NO_QUERY) if segments else None,
        kv_segments=rows(operands["kv_segment_ids"], tiles.kv, _NO_KEY) if segments else None,
    )


def tables(
    problem: AttentionProblem, operands: Operands, tiles: Tiles, steps: Steps, vectors: Vectors, queries_first: bool
) -> dict[str, jax.Array]:
    """Returns the arrays to prefetch, int32 and flat, by name."""
    result = {
        "q": jnp.asarray(steps.q),
        "kv": jnp.asarray(steps.kv),
        "flags": jnp.asarray(steps.flags()),
        "queries_done": jnp.asarray(steps.queries_done()),
    }
    for name, operand in (("prefix", "prefix_lengths"), ("lengths", "kv_lengths")):
        if operand in operands:
            result[name] = operands[operand].astype(jnp.int32)
    for name, x in vars(vectors).items():
        if x is not None:
            side = tiles.q if name.startswith("q_") else tiles.kv
            result[name] = _limits(x, side.block)
            result[f"{name}_of_parts"] = _limits(x, side.part)
    for name in predicates_of(problem.mask):
        result[f"pairs_{name}"], result[f"pairs_{name}_of_parts"] = _pairs(name, vectors, tiles)
    if has_data(problem, tiles):
        result["fetched"] = _fetched(result, tiles, steps, problem.batch, queries_first)
    return result


def has_data(problem: AttentionProblem, tiles: Tiles) -> bool:
    """Returns whether a table says which blocks meet beyond what is known when compiling."""
    mask = problem.mask
    return bool(not tiles.known or mask.needs_prefix or mask.needs_segments or predicates_of(mask))


def rows_of_pairs(problem: AttentionProblem, tiles: Tiles) -> int:
    """Returns how many rows a predicate's tables have: one for all rows where their positions are alike."""
    return 1 if tiles.known else problem.batch


def _pairs(name: str, vectors: Vectors, tiles: Tiles) -> tuple[jax.Array, jax.Array]:
    """Returns 1 where a predicate allows some pairs, plus 2 where all: of blocks and of parts, flat int32."""
    at = [
        jnp.arange(side.padded, dtype=jnp.int32)[None] if x is None else x
        for side, x in ((tiles.q, vectors.q_positions), (tiles.kv, vectors.kv_positions))
    ]
    q, kv = tiles.q, tiles.kv
    # Evaluated for every pair; XLA fuses it with what sums it up, so that no pair is stored.
    allowed = MaskSpec(predicates=(name,)).allowed(*at)
    pairs = jnp.broadcast_to(True if allowed is None else allowed, (at[0].shape[0], q.padded, kv.padded))
    split = pairs.reshape(-1, q.blocks * q.parts, q.part, kv.blocks * kv.parts, kv.part)
    some, every = jnp.any(split, axis=(2, 4)), jnp.all(split, axis=(2, 4))

    def whole(x: jax.Array, reduced: Callable[..., jax.Array]) -> jax.Array:
        return reduced(x.reshape(-1, q.blocks, q.parts, kv.blocks, kv.parts), axis=(2, 4))

    def flat(some: jax.Array, every: jax.Array) -> jax.Array:
        return (some.astype(jnp.int32) + 2 * every.astype(jnp.int32)).reshape(-1)

    return flat(whole(some, jnp.any), whole(every, jnp.all)), flat(some, every)


def _limits(x: jax.Array, size: int) -> jax.Array:
    """Returns the least of each `size` numbers of [B, T], then the greatest: flat [2 * B * T / size]."""
    split = x.reshape(x.shape[0], -1, size)
    return jnp.stack([split.min(axis=-1), split.max(axis=-1)]).reshape(-1)


def _fetched(result: Mapping[str, jax.Array], tiles: Tiles, steps: Steps, batch: int, queries_first: bool) -> jax.Array:
    """Returns which block each row's step loads, [B * steps]: the one loaded before where it needs none."""
    row = jnp.arange(batch, dtype=jnp.int32)[:, None]
    some, _ = reach_of_blocks(result, tiles, batch, row, steps.q[None], steps.kv[None])
    # Where only a predicate decides, all rows are alike.
    some = jnp.broadcast_to(some, (batch, len(steps)))
    step = np.arange(len(steps), dtype=np.int32)
    latest = jax.lax.cummax(jnp.where(some, step, -1), axis=1)
    # Before the first step that needs one: its own, so that it is there by then.
    first = jnp.argmax(some, axis=1).astype(jnp.int32)[:, None]
    blocks = steps.kv if queries_first else steps.q
    return jnp.asarray(blocks)[jnp.where(latest < 0, first, latest)].reshape(-1)


def reach_of_blocks(
    scalars: Mapping[str, Any], tiles: Tiles, batch: int, row: Any, i: Any, j: Any, parts: tuple[Any, Any] | None = None
) -> tuple[Any, Any]:
    """Returns whether some, and all, keys of block j are visible to queries of block i, or parts of either.

    `scalars` holds arrays, or a kernel's references to them.
    """

    def limits(name: str, side: Side, block: Any, part: Any) -> Range:
        count = side.blocks if parts is None else side.blocks * side.parts
        index = row * count + (block if parts is None else block * side.parts + part)
        table = scalars[name if parts is None else f"{name}_of_parts"]
        return table[index], table[batch * count + index]

    def positions(name: str, side: Side, block: Any, part: Any) -> Range:
        if not tiles.known:
            return limits(name, side, block, part)
        size = side.block if parts is None else side.part
        first = block * side.block + (0 if parts is None else part * side.part)
        return first, first + size - 1

    def pairs(name: str) -> tuple[Any, Any]:
        table = scalars[f"pairs_{name}" if parts is None else f"pairs_{name}_of_parts"]
        q, kv = (i, j) if parts is None else (i * tiles.q.parts + parts[0], j * tiles.kv.parts + parts[1])
        counts = [side.blocks if parts is None else side.blocks * side.parts for side in (tiles.q, tiles.kv)]
        first = 0 if tiles.known else row * (counts[0] * counts[1])
        flags = table[first + q * counts[1] + kv]
        return flags & 1 != 0, flags & 2 != 0

    q_part, kv_part = parts or (0, 0)
    segments = "q_segments" in scalars
    at = Ranges(
        q=positions("q_positions", tiles.q, i, q_part),
        k=positions("kv_positions", tiles.kv, j, kv_part),
        q_segments=limits("q_segments", tiles.q, i, q_part) if segments else None,
        k_segments=limits("kv_segments", tiles.kv, j, kv_part) if segments else None,
        prefix=scalars["prefix"][row] if "prefix" in scalars else None,
        predicates={name: pairs(name) for name in predicates_of(tiles.mask)},
    )
    some, every = reach(tiles.mask, at)
    end = row_end(scalars, tiles, row)
    if end is not None:
        size = tiles.kv.block if parts is None else tiles.kv.part
        first = j * tiles.kv.block + (0 if parts is None else kv_part * tiles.kv.part)
        some, every = some & (first < end), every & (first + size <= end)
    return some, every


def for_each_part(
    scalars: Mapping[str, Any], tiles: Tiles, batch: int, row: Any, i: Any, j: Any, body: Callable[[Any, Any], None]
) -> None:
    """Runs `body(first query, first key)` for each pair of parts of two blocks of which the mask leaves something."""
    q, kv = tiles.q, tiles.kv

    def one(index: Any, carry: None) -> None:
        r, k = index // kv.parts, index % kv.parts
        some, _ = reach_of_blocks(scalars, tiles, batch, row, i, j, (r, k))
        pl.when(some)(lambda: body(pl.multiple_of(r * q.part, _LANES), pl.multiple_of(k * kv.part, _LANES)))
        return carry

    jax.lax.fori_loop(0, q.parts * kv.parts, one, None)


def row_end(scalars: Mapping[str, Any], tiles: Tiles, row: Any) -> Any:
    """Returns how many keys a row has; None where its blocks hold no more."""
    if "lengths" in scalars:
        return scalars["lengths"][row]
    return None if tiles.kv.padded == tiles.kv.length else tiles.kv.length
