"""What one program of a kernel sees of attention: loading rows, and the scores of one tile.

Scores are held in units of log2, because a GPU's exponential is to base 2. Legend: B rows, T queries, S keys, H query
heads, K key heads, D head width.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.attention.dropout import keep_mask
from kanawa.kernels.attention.problem import AttentionProblem

from kanawa_backends_gpu.kernels.attention.flash.visits import Visits
from kanawa_backends_gpu.kernels.triton_tiles import dot, pieces

LOG2_E = math.log2(math.e)
#: Of a masked score; the sums guard against rows that have no other.
MASKED = float("-inf")
#: A number with a shape: an index of Python's own trips Pallas's interpreter (jax 0.10) in a masked load.
ZERO = np.int32(0)

Refs = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a problem is cut, static.

    Attributes:
        queries, keys: rows of a tile's two sides, powers of two.
    """

    problem: AttentionProblem
    queries: int
    keys: int

    @property
    def query_blocks(self) -> int:
        """Blocks of queries, the last one maybe short."""
        return -(-self.problem.q_length // self.queries)

    @property
    def key_blocks(self) -> int:
        """Blocks of keys, the last one maybe short."""
        return -(-self.problem.kv_length // self.keys)


class At(NamedTuple):
    """Where a tile lies: row of the batch, query head, first query, first key."""

    row: Any
    head: Any
    query: Any
    key: Any


def divided(number: Any, by: int) -> tuple[Any, Any]:
    """Returns (quotient, remainder) of a number that isn't negative.

    Python's own operators round down for negative ones, with a selection that Triton's lowering refuses in some loops.
    """
    divisor = np.int32(by)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def load_rows(ref: Any, row: Any, head: Any, start: Any, size: int, checked: bool, end: Any = None) -> list[jax.Array]:
    """Returns rows [start, start + size) of [B, L, H, D] as pieces [size, width].

    Zeros from `end` on, and, if `checked`, from the last row on.
    """
    rows = pl.ds(start, size)
    inside = {}
    if end is None and checked and ref.shape[1] % size:
        end = ref.shape[1]
    if end is not None:
        inside = {"mask": (start + jnp.arange(size) < end)[:, None], "other": 0.0}
    return [plgpu.load(ref.at[row, rows, head, pl.ds(at, width)], **inside) for at, width in pieces(ref.shape[3])]


def store_rows(ref: Any, row: Any, head: Any, start: Any, parts: list[jax.Array]) -> None:
    """Stores pieces [size, width] as rows of [B, L, H, D] from `start` on, those past the end left out."""
    size = parts[0].shape[0]
    rows = pl.ds(start, size)
    inside = None
    if ref.shape[1] % size:
        inside = (start + jnp.arange(size) < ref.shape[1])[:, None]
    for (at, width), part in zip(pieces(ref.shape[3]), parts, strict=True):
        plgpu.store(ref.at[row, rows, head, pl.ds(at, width)], part.astype(ref.dtype), mask=inside)


def load_numbers(ref: Any, place: tuple[Any, ...], start: Any, size: int, beyond: Any) -> jax.Array:
    """Returns `size` numbers of the last dimension, `beyond` past its end."""
    inside = {}
    if ref.shape[-1] % size:
        inside = {"mask": start + jnp.arange(size) < ref.shape[-1], "other": beyond}
    return plgpu.load(ref.at[*place, pl.ds(start, size)], **inside)


def dot_pieces(a: list[jax.Array], b: list[jax.Array]) -> jax.Array:
    """Returns rows by rows: the sum over pieces of a piece times another's transpose."""
    total = dot(a[0], b[0], trans_b=True)
    for left, right in zip(a[1:], b[1:], strict=True):
        total = total + dot(left, right, trans_b=True)
    return total


def visit(visited: Visits, refs: Refs, row: Any, owner: Any, body: Callable[[Any, bool, Any], Any], carry: Any) -> Any:
    """Returns carry after `body(block, masked, carry)` for every block that `owner` visits."""
    bounds = refs["bounds"]
    at = row_of(bounds, row)
    stretches = [(bounds[at, owner, i], bounds[at, owner, i + 1]) for i in range(3)]

    def block(step: Any) -> Any:
        return step if visited.order is None else refs["order"][at, owner, step]

    for (start, stop), there, masked in zip(stretches, visited.phases, (True, False, True), strict=True):
        if there:

            def one(step: Any, seen: Any, masked: bool = masked) -> Any:
                return body(block(step), masked, seen)

            carry = jax.lax.fori_loop(start, stop, one, carry)
    return carry


def row_of(ref: Any, row: Any) -> Any:
    """Returns which row of an operand with one row for each of the batch, or one for all."""
    return ZERO if ref.shape[0] == 1 else row


def scores(
    tiles: Tiles, refs: Refs, at: At, products: jax.Array, masked: bool, transposed: bool = False
) -> tuple[jax.Array, jax.Array | None]:
    """Returns a tile's scores in units of log2, and the derivative of the cap where there is one.

    products: q k^T [queries, keys] in fp32, or k q^T if `transposed`.
    """
    p = tiles.problem
    slope = None
    if p.logit_cap is None:
        score = products * (p.scale * LOG2_E)
    else:
        bent = jnp.tanh(products * (p.scale / p.logit_cap))
        score, slope = bent * (p.logit_cap * LOG2_E), 1.0 - bent * bent
    if p.has_alibi:
        q, k = _positions(tiles, refs, at, transposed)
        slope_of_head = refs["alibi_slopes"][at.head].astype(jnp.float32) * LOG2_E
        score = score - slope_of_head * jnp.abs(q - k).astype(jnp.float32)
    if p.has_bias:
        bias = _bias(tiles, refs["bias"], at).astype(jnp.float32) * LOG2_E
        score = score + (bias.T if transposed else bias)
    if masked:
        counts = _counts(tiles, refs, at, transposed)
        if counts is not None:
            score = jnp.where(counts, score, MASKED)
    return score, slope


def _bias(tiles: Tiles, ref: Any, at: At) -> jax.Array:
    """Returns [queries or 1, keys or 1] of the bias."""
    batch, heads, rows, columns = ref.shape
    place = (ZERO if batch == 1 else at.row, ZERO if heads == 1 else at.head)
    sides = [_side(rows, at.query, tiles.queries), _side(columns, at.key, tiles.keys)]
    inside = None
    for axis, (length, (_, size)) in enumerate(zip((rows, columns), sides, strict=True)):
        if length % size:
            fits = sides[axis][0] + jnp.arange(size) < length
            fits = fits[:, None] if axis == 0 else fits[None, :]
            inside = fits if inside is None else inside & fits
    (row, height), (column, width) = sides
    view = ref.at[*place, pl.ds(row, height), pl.ds(column, width)]
    return plgpu.load(view) if inside is None else plgpu.load(view, mask=inside, other=0.0)


def _side(length: int, start: Any, size: int) -> tuple[Any, int]:
    return (ZERO, 1) if length == 1 else (start, size)


def dropout_factor(tiles: Tiles, refs: Refs, at: At, transposed: bool = False) -> jax.Array:
    """Returns what each weight of the tile is multiplied with: 0, or what makes up for those that are dropped."""
    rate = tiles.problem.dropout_rate
    first, second = (
        load_numbers(refs[name], (at.row, at.head), at.query, tiles.queries, 0)
        for name in ("drop_first", "drop_second")
    )
    first, second = (_of_queries(word, transposed) for word in (first, second))
    keys = _of_keys((at.key + jnp.arange(tiles.keys)).astype(jnp.uint32), transposed)
    return jnp.where(keep_mask(first, second, keys, rate), 1.0 / (1.0 - rate), 0.0)


def _of_queries(x: jax.Array, transposed: bool) -> jax.Array:
    return x[None, :] if transposed else x[:, None]


def _of_keys(x: jax.Array, transposed: bool) -> jax.Array:
    return x[:, None] if transposed else x[None, :]


def _of_rows(refs: Refs, name: str, at: At, start: Any, size: int) -> jax.Array:
    ref = refs[name]
    return load_numbers(ref, (row_of(ref, at.row),), start, size, 0)


def _positions(tiles: Tiles, refs: Refs, at: At, transposed: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of the tile's queries and keys, shaped to broadcast to it."""
    sides = (("q_positions", at.query, tiles.queries), ("kv_positions", at.key, tiles.keys))
    q, k = (
        _of_rows(refs, name, at, start, size) if name in refs else start + jnp.arange(size)
        for name, start, size in sides
    )
    return _of_queries(q, transposed), _of_keys(k, transposed)


def _counts(tiles: Tiles, refs: Refs, at: At, transposed: bool) -> jax.Array | None:
    """Returns which scores of the tile count."""
    p = tiles.problem
    q, k = _positions(tiles, refs, at, transposed)
    segments: tuple[Any, Any] = (None, None)
    if p.has_segments:
        ids = _of_rows(refs, "q_segment_ids", at, at.query, tiles.queries)
        kv_ids = _of_rows(refs, "kv_segment_ids", at, at.key, tiles.keys)
        segments = _of_queries(ids, transposed), _of_keys(kv_ids, transposed)
    prefix = refs["prefix_lengths"][at.row] if p.mask.needs_prefix else None
    result = p.mask.visible(q, k, *segments, prefix)
    end = None
    if p.has_kv_lengths:
        end = refs["kv_lengths"][at.row]
    elif p.kv_length % tiles.keys:
        end = p.kv_length
    if end is not None:
        exists = _of_keys(at.key + jnp.arange(tiles.keys) < end, transposed)
        result = exists if result is None else result & exists
    return result
