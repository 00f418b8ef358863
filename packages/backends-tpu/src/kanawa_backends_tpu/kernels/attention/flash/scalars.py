"""What a kernel knows before it loads anything: which blocks a step is of, and what their mask leaves.

Prefetched to scalar memory. Where segments, positions or prefixes are operands, so are the least and greatest of each
block and part: a step whose blocks share nothing loads nothing and computes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

from kanawa_backends_tpu.kernels.attention.flash.tiles import Side, Steps, Tiles
from kanawa_backends_tpu.kernels.attention.flash.visibility import Range, reach, same_segment

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

    def rows(name: str, side: Side, padding: int | None) -> jax.Array:
        x = jnp.broadcast_to(operands[name].astype(jnp.int32), (problem.batch, side.length))
        widths = ((0, 0), (0, side.padded - side.length))
        return jnp.pad(x, widths, mode="edge") if padding is None else jnp.pad(x, widths, constant_values=padding)

    def positions(name: str, side: Side) -> jax.Array | None:
        if tiles.known:
            return None
        if name in operands:
            return rows(name, side, None)
        return jnp.broadcast_to(jnp.arange(side.padded, dtype=jnp.int32), (problem.batch, side.padded))

    segments = problem.has_segments
    return Vectors(
        q_positions=positions("q_positions", tiles.q),
        kv_positions=positions("kv_positions", tiles.kv),
        q_segments=rows("q_segment_ids", tiles.q, _NO_QUERY) if segments else None,
        kv_segments=rows("kv_segment_ids", tiles.kv, _NO_KEY) if segments else None,
    )


def tables(
    problem: AttentionProblem, operands: Operands, tiles: Tiles, steps: Steps, given: Vectors, queries_first: bool
) -> dict[str, jax.Array]:
    """Returns the arrays to prefetch, int32 and flat, by name."""
    result = {
        "q": jnp.asarray(steps.q),
        "kv": jnp.asarray(steps.kv),
        "flags": jnp.asarray(steps.flags()),
        "queries_done": jnp.asarray(steps.queries_done()),
    }
    if problem.mask.prefix:
        result["prefix"] = operands["prefix_lengths"].astype(jnp.int32)
    for name, x in vars(given).items():
        if x is not None:
            side = tiles.q if name.startswith("q_") else tiles.kv
            result[name] = _limits(x, side.block)
            result[f"{name}_of_parts"] = _limits(x, side.part)
    if "prefix" in result or "q_positions" in result or "q_segments" in result:
        result["fetched"] = _fetched(result, tiles, steps, problem.batch, queries_first)
    return result


def _limits(x: jax.Array, size: int) -> jax.Array:
    """Returns the least of each `size` numbers of [B, T], then the greatest: flat [2 * B * T / size]."""
    split = x.reshape(x.shape[0], -1, size)
    return jnp.stack([split.min(axis=-1), split.max(axis=-1)]).reshape(-1)


def _fetched(result: Mapping[str, jax.Array], tiles: Tiles, steps: Steps, batch: int, queries_first: bool) -> jax.Array:
    """Returns which block each row's step loads, [B * steps]: the one loaded before where it needs none."""
    row = jnp.arange(batch, dtype=jnp.int32)[:, None]
    some, _ = reach_of_blocks(result, tiles, batch, row, steps.q[None], steps.kv[None])
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

    q_part, kv_part = parts or (0, 0)
    prefix = scalars["prefix"][row] if "prefix" in scalars else None
    q = positions("q_positions", tiles.q, i, q_part)
    k = positions("kv_positions", tiles.kv, j, kv_part)
    some, every = reach(tiles.mask, q, k, prefix)
    if "q_segments" in scalars:
        alike = same_segment(limits("q_segments", tiles.q, i, q_part), limits("kv_segments", tiles.kv, j, kv_part))
        some, every = some & alike[0], every & alike[1]
    if tiles.kv.padded != tiles.kv.length:
        size = tiles.kv.block if parts is None else tiles.kv.part
        first = j * tiles.kv.block + (0 if parts is None else kv_part * tiles.kv.part)
        some, every = some & (first < tiles.kv.length), every & (first + size <= tiles.kv.length)
    return some, every
