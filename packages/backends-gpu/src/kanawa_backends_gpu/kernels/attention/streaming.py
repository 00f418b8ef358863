"""One pass over a cache's keys for a tile of queries: the Pallas (Triton) kernel behind decode and paged attention.

A program holds all query heads of one key head (up to 64 of them) for a few queries, so that a key is read once for
them, and walks a share of the keys that the mask leaves: split over programs, because one token's queries fill no GPU.
Keys are gathered where they lie, through the page table if there is one, and never copied. FlashAttention (Dao et al.
2022, arXiv:2205.14135), and for the split over keys Flash-Decoding (Dao et al. 2023).

Legend: B rows, T queries, H query heads, K key heads, G = H / K, M = rows of a program's tile (queries times heads),
N keys of one step, S keys a row.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.scores import MASKED
from kanawa.kernels.operation import Operands

from kanawa_backends_gpu.kernels.attention.query_tiles import QueryTiles
from kanawa_backends_gpu.kernels.triton_tiles import NARROWEST, dot, pieces, power_of_two

_MOST_HEADS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """How a problem is cut into programs.

    Attributes:
        queries: queries of a tile.
        heads: query heads of a tile, all of one key head.
        rows: queries times heads, up to a power of two.
        keys: keys of one step.
        splits: programs that share a tile's keys.
    """

    queries: int
    heads: int
    rows: int
    keys: int
    splits: int

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return 4 if self.rows <= 64 else 8


def stream(
    problem: AttentionProblem, operands: Operands, geometry: Geometry, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """Returns (out [splits, B, T, H, Dv], log-sum-exp fp32 [splits, B, T, H]) of each share of the keys.

    A share that sees no key has out 0 and log-sum-exp -inf. Sinks belong to the first share. Out is fp32 if there are
    several shares, else in q's dtype. Queries that no tile owns are left as they are.
    """
    p, g = problem, geometry
    tiles = QueryTiles.of_problem(p, operands, g.queries)
    flat = _flat(p, operands)
    count = p.batch * p.q_length * p.num_heads
    blocks = -(-p.group_size // g.heads)
    out, lse = pl.pallas_call(
        functools.partial(_program, problem=p, geometry=g),
        out_shape=(
            jax.ShapeDtypeStruct((g.splits, count, p.v_head_dim), jnp.float32 if g.splits > 1 else p.dtype),
            jax.ShapeDtypeStruct((g.splits, count), jnp.float32),
        ),
        grid=(tiles.row.shape[0], p.num_kv_heads * blocks, g.splits),
        compiler_params=plgpu.CompilerParams(num_warps=g.num_warps, num_stages=3),
        interpret=interpret,
        name="attention_over_cache",
    )(tiles._asdict(), flat)
    shape = (g.splits, p.batch, p.q_length, p.num_heads)
    return out.reshape(*shape, p.v_head_dim), lse.reshape(shape)


def geometry_of(problem: AttentionProblem, *, multiprocessors: int, keys: int, queries: int) -> Geometry:
    """Returns the cut for so many multiprocessors, in steps of `keys` keys and tiles of `queries` queries."""
    heads = min(problem.group_size, _MOST_HEADS)
    programs = problem.batch * -(-problem.q_length // queries) * problem.num_kv_heads * -(-problem.group_size // heads)
    if problem.ragged_sequences is not None:
        programs = max(programs, problem.ragged_sequences * problem.num_kv_heads)
    # Two programs for each multiprocessor hide each other's latency; a share under four steps isn't worth its merge.
    wanted = -(-2 * multiprocessors // programs)
    splits = max(1, min(wanted, problem.kv_length // (4 * keys)))
    rows = max(NARROWEST, power_of_two(queries * heads))
    return Geometry(queries=queries, heads=heads, rows=rows, keys=keys, splits=splits)


def _flat(problem: AttentionProblem, operands: Operands) -> dict[str, jax.Array]:
    """Returns the operands with their leading dimensions as one: a program then gathers along that one."""
    p = problem
    flat = {
        "q": operands["q"].reshape(-1, p.head_dim),
        "k": operands["k"].reshape(-1, p.head_dim),
        "v": operands["v"].reshape(-1, p.v_head_dim),
    }
    if p.bias_shape is not None:
        flat["bias"] = operands["bias"].reshape(-1, p.bias_shape[-1])
    names = ("q_positions", "kv_positions", "q_segment_ids", "kv_segment_ids", "prefix_lengths", "page_table")
    flat |= {name: operands[name].astype(jnp.int32).reshape(-1) for name in names if name in operands}
    flat |= {name: operands[name].astype(jnp.float32) for name in ("sinks", "alibi_slopes") if name in operands}
    return flat


def _lines(ref: Any, line: jax.Array, piece: tuple[int, int], outer: Any = None) -> Any:
    """Returns a view of `size` columns from `offset` of each line, within `outer` of the leading dimension if any."""
    # All indices as arrays: Pallas's interpreter takes no mixture of arrays and slices.
    offset, size = piece
    shape = (line.shape[0], size)
    column = jnp.broadcast_to(offset + jnp.arange(size, dtype=jnp.int32)[None, :], shape)
    line = jnp.broadcast_to(line[:, None], shape)
    return ref.at[line, column] if outer is None else ref.at[outer, line, column]


def _row_of(ref: Any, row: Any, length: int) -> Any:
    """Returns where `row` begins in a flat [B or 1, length]."""
    return row * length if ref.shape[0] > length else 0


@dataclasses.dataclass(frozen=True)
class _Queries:
    """The rows of a tile.

    Attributes:
        row: of q; `sequence`: of the keys.
        real: which rows there are, [M].
        query, head: each row's, [M].
        positions, segments: [M]; segments None where there are none.
    """

    row: Any
    sequence: Any
    real: jax.Array
    query: jax.Array
    head: jax.Array
    positions: jax.Array
    segments: jax.Array | None


def _program(tiles: Any, refs: Any, out: Any, lse: Any, *, problem: AttentionProblem, geometry: Geometry) -> None:
    p, g = problem, geometry
    tile, split = pl.program_id(0), pl.program_id(2)
    blocks = -(-p.group_size // g.heads)
    kv_head, block = pl.program_id(1) // blocks, pl.program_id(1) % blocks
    queries = _queries(p, g, {name: ref[tile] for name, ref in tiles.items()}, refs, kv_head, block)
    low, high = _range(p, queries, tiles["keys"][tile], refs)

    at = (queries.row * p.q_length + queries.query) * p.num_heads + queries.head
    at = jnp.where(queries.real, at, 0)
    real = queries.real[:, None]
    q = [plgpu.load(_lines(refs["q"], at, piece), mask=real, other=0.0) for piece in pieces(p.head_dim)]

    def step(index: jax.Array, carry: Any) -> Any:
        return _step(p, g, refs, queries, kv_head, q, low + index * g.keys, high, carry)

    steps = (jnp.maximum(high - low, 0) + g.keys - 1) // g.keys
    share = (steps + g.splits - 1) // g.splits
    begin, stop = jnp.minimum(split * share, steps), jnp.minimum((split + 1) * share, steps)
    top, total, weighed = jax.lax.fori_loop(begin, stop, step, _start(p, g, queries, refs, split))
    # One past the end where there is no row: Pallas's interpreter writes masked elements back, and two writers of one
    # place would race.
    at = jnp.where(queries.real, at, lse.shape[1])
    seen = total > 0
    divisor = jnp.where(seen, total, 1.0)
    plgpu.store(lse.at[split, at], jnp.where(seen, top + jnp.log(divisor), -jnp.inf), mask=queries.real)
    for piece, part in zip(pieces(p.v_head_dim), weighed, strict=True):
        plgpu.store(_lines(out, at, piece, split), (part / divisor[:, None]).astype(out.dtype), mask=real)


def _queries(p: AttentionProblem, g: Geometry, tile: Any, refs: Any, kv_head: Any, block: Any) -> _Queries:
    line = jnp.arange(g.rows, dtype=jnp.int32)
    query = tile["first"] + line // g.heads
    in_group = block * g.heads + line % g.heads
    real = (line < g.queries * g.heads) & (query < tile["end"]) & (in_group < p.group_size)

    def of_query(name: str) -> jax.Array:
        start = _row_of(refs[name], tile["row"], p.q_length)
        return plgpu.load(refs[name].at[jnp.where(real, start + query, 0)], mask=real, other=0)

    segmented = p.has_segments and p.ragged_sequences is None
    return _Queries(
        row=tile["row"],
        sequence=tile["sequence"],
        real=real,
        query=query,
        head=kv_head * p.group_size + in_group,
        positions=of_query("q_positions") if p.has_q_positions else query + tile["shift"],
        segments=of_query("q_segment_ids") if segmented else None,
    )


def _range(p: AttentionProblem, queries: _Queries, keys: Any, refs: Any) -> tuple[Any, Any]:
    """Returns the first key that a query of the tile may see, and the end of them."""
    low, high = jnp.int32(0), keys
    mask = p.mask
    if p.has_kv_positions:
        return low, high
    # Rows that aren't there must not widen the range.
    first = jnp.min(jnp.where(queries.real, queries.positions, 2**30))
    last = jnp.max(jnp.where(queries.real, queries.positions, -1))
    if mask.causal:
        high = jnp.minimum(high, last + 1)
    if mask.window is not None:
        left, right = mask.window
        low = low if left is None else jnp.maximum(low, first - left)
        high = high if right is None else jnp.minimum(high, last + right + 1)
    if mask.chunk is not None:
        low = jnp.maximum(low, first // mask.chunk * mask.chunk)
        high = jnp.minimum(high, last // mask.chunk * mask.chunk + mask.chunk)
    if mask.prefix:
        prefix = jnp.minimum(refs["prefix_lengths"][queries.row], keys)
        lone = not (mask.uses - {"prefix", "segments"})
        low, high = jnp.int32(0), prefix if lone else jnp.maximum(high, prefix)
    return low, high


def _start(p: AttentionProblem, g: Geometry, queries: _Queries, refs: Any, split: Any) -> Any:
    """Returns (highest score, sum of weights, weighed values) before the first key: the sinks, in the first share."""
    top = jnp.full((g.rows,), MASKED, jnp.float32)
    total = jnp.zeros((g.rows,), jnp.float32)
    if p.has_sinks:
        sinks = plgpu.load(refs["sinks"].at[jnp.where(queries.real, queries.head, 0)])
        sinks = jnp.where(split == 0, sinks, -jnp.inf)
        top = jnp.maximum(sinks, top)
        total = jnp.exp(sinks - top)
    weighed = tuple(jnp.zeros((g.rows, size), jnp.float32) for _, size in pieces(p.v_head_dim))
    return top, total, weighed


def _step(
    p: AttentionProblem,
    g: Geometry,
    refs: Any,
    queries: _Queries,
    kv_head: Any,
    q: list[jax.Array],
    first: Any,
    end: Any,
    carry: Any,
) -> Any:
    top, total, weighed = carry
    key = first + jnp.arange(g.keys, dtype=jnp.int32)
    exists = key < end
    token = _token(p, refs, queries.sequence, key, exists)

    def rows_of(ref: Any, piece: tuple[int, int]) -> jax.Array:
        return plgpu.load(_lines(ref, token * p.num_kv_heads + kv_head, piece), mask=exists[:, None], other=0.0)

    scores = jnp.zeros((g.rows, g.keys), jnp.float32)
    for part, piece in zip(q, pieces(p.head_dim), strict=True):
        scores += dot(part, rows_of(refs["k"], piece).astype(part.dtype), trans_b=True)
    scores *= p.scale
    if p.logit_cap is not None:
        scores = p.logit_cap * jnp.tanh(scores / p.logit_cap)
    if p.bias_shape is not None:
        scores += _bias(p, refs["bias"], queries, key, exists)
    places = _of_key(p, refs, "kv_positions", queries, key, exists) if p.has_kv_positions else key
    if p.has_alibi:
        slopes = plgpu.load(refs["alibi_slopes"].at[jnp.where(queries.real, queries.head, 0)])
        distance = jnp.abs(queries.positions[:, None] - places[None, :])
        scores -= slopes[:, None] * distance.astype(jnp.float32)
    seen = _seen(p, refs, queries, key, exists, places)
    higher = jnp.maximum(top, jnp.max(jnp.where(seen, scores, MASKED), axis=1))
    # Masked by hand: where a row has seen nothing yet, its highest score is MASKED, and a masked score would weigh 1.
    weights = jnp.where(seen, jnp.exp(scores - higher[:, None]), 0.0)
    fade = jnp.exp(top - higher)
    total = total * fade + jnp.sum(weights, axis=1)
    added = []
    for part, piece in zip(weighed, pieces(p.v_head_dim), strict=True):
        values = rows_of(refs["v"], piece)
        added.append(part * fade[:, None] + dot(weights.astype(values.dtype), values))
    return higher, total, tuple(added)


def _token(p: AttentionProblem, refs: Any, sequence: Any, key: jax.Array, exists: jax.Array) -> jax.Array:
    """Returns where the keys lie in flat k and v: int32 [N]; within them, whatever the page table says."""
    if p.page_size is None:
        return jnp.where(exists, sequence * p.kv_length + key, 0)
    entries = p.kv_length // p.page_size
    pages = refs["k"].shape[0] // (p.page_size * p.num_kv_heads)
    entry = jnp.where(exists, sequence * entries + key // p.page_size, 0)
    page = plgpu.load(refs["page_table"].at[entry], mask=exists, other=0)
    return jnp.clip(page, 0, pages - 1) * p.page_size + key % p.page_size


def _bias(p: AttentionProblem, ref: Any, queries: _Queries, key: jax.Array, exists: jax.Array) -> jax.Array:
    """Returns the bias of the tile, fp32 [M, N] or what broadcasts to it."""
    batch, heads, length, keys = p.bias_shape or (1, 1, 1, 1)
    line = jnp.zeros_like(queries.head)
    for place, size in ((queries.row, batch), (queries.head, heads), (queries.query, length)):
        line = line * size + (place if size > 1 else 0)
    line = jnp.where(queries.real, line, 0)
    if keys == 1:
        return plgpu.load(ref.at[line, 0]).astype(jnp.float32)[:, None]
    both = queries.real[:, None] & exists[None, :]
    at = jnp.broadcast_to(line[:, None], both.shape), jnp.broadcast_to(jnp.where(exists, key, 0)[None, :], both.shape)
    return plgpu.load(ref.at[at], mask=both, other=0.0).astype(jnp.float32)


def _of_key(
    p: AttentionProblem, refs: Any, name: str, queries: _Queries, key: jax.Array, exists: jax.Array
) -> jax.Array:
    """Returns what an operand [B or 1, S] says of the step's keys: int32 [N]."""
    start = _row_of(refs[name], queries.sequence, p.kv_length)
    return plgpu.load(refs[name].at[jnp.where(exists, start + key, 0)], mask=exists, other=0)


def _seen(
    p: AttentionProblem, refs: Any, queries: _Queries, key: jax.Array, exists: jax.Array, places: jax.Array
) -> jax.Array:
    """Returns which keys of the step, at positions `places`, each row sees: bool [M, N]."""
    q, k = queries.positions[:, None], places[None]
    prefix = refs["prefix_lengths"][queries.row] if p.mask.needs_prefix else None
    if queries.segments is None:
        allowed = dataclasses.replace(p.mask, segments=False).visible(q, k, prefix=prefix)
    else:
        ids = _of_key(p, refs, "kv_segment_ids", queries, key, exists)
        allowed = p.mask.visible(q, k, queries.segments[:, None], ids[None], prefix)
    there = queries.real[:, None] & exists[None, :]
    return there if allowed is None else there & allowed
