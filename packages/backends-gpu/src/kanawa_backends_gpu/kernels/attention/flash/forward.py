"""The forward kernel: a program takes one block of queries of one head through the keys it may see.

Dao, "FlashAttention-2" (2023), algorithm 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from kanawa_backends_gpu.kernels.attention.flash import tile
from kanawa_backends_gpu.kernels.attention.flash.tile import At, Refs, Tiles
from kanawa_backends_gpu.kernels.attention.flash.visits import Visits
from kanawa_backends_gpu.kernels.triton_tiles import dot, pieces


def grid(tiles: Tiles) -> tuple[int, int, int]:
    """Returns (blocks of queries by query heads of a key head, key heads, rows).

    Programs that start together share a key head, so that its keys stay in the L2 cache.
    """
    p = tiles.problem
    return tiles.query_blocks * p.group_size, p.num_kv_heads, p.batch


def place(tiles: Tiles) -> tuple[Any, Any, Any, Any]:
    """Returns this program's (row, query head, key head, block of queries)."""
    p = tiles.problem
    both, kv_head, row = (pl.program_id(i) for i in range(3))
    count, member = tile.divided(both, p.group_size)
    # The last queries first: under a causal mask they have most to do, and short programs fill up the end.
    return row, kv_head * p.group_size + member, kv_head, tiles.query_blocks - 1 - count


def forward(refs: Refs, out: Any, lse: Any, *, tiles: Tiles, visited: Visits) -> None:
    """Writes out [B, T, H, Dv] and the log-sum-exp, fp32 [B, H, T], natural, sinks included."""
    p = tiles.problem
    row, head, kv_head, block = place(tiles)
    start = block * tiles.queries
    q = tile.load_rows(refs["q"], row, head, start, tiles.queries, checked=True)
    sums = tuple(jnp.zeros((tiles.queries, width), jnp.float32) for _, width in pieces(p.v_head_dim))
    nothing = jnp.full((tiles.queries,), tile.MASKED, jnp.float32)

    def one_block(index: Any, masked: bool, seen: Any) -> Any:
        sums, top, total = seen
        key = index * tiles.keys
        k = tile.load_rows(refs["k"], row, kv_head, key, tiles.keys, checked=masked)
        at = At(row, head, start, key)
        score, _ = tile.scores(tiles, refs, at, tile.dot_pieces(q, k), masked)
        higher = jnp.maximum(top, jnp.max(score, axis=1))
        base = _finite(higher)
        weights = jnp.exp2(score - base[:, None])
        rescale = jnp.exp2(top - base)
        # A cache may hold anything past its last key, and a weight of 0 doesn't hide a NaN there.
        end = refs["kv_lengths"][row] if p.has_kv_lengths and masked else None
        v = tile.load_rows(refs["v"], row, kv_head, key, tiles.keys, checked=masked, end=end)
        # Dropout leaves the sum of weights as it is: a softmax first, then some of its weights.
        dropped = weights * tile.dropout_factor(tiles, refs, at) if p.dropout_rate else weights
        weighed = dropped.astype(v[0].dtype)
        sums = tuple(old * rescale[:, None] + dot(weighed, part) for old, part in zip(sums, v, strict=True))
        return sums, higher, total * rescale + jnp.sum(weights, axis=1)

    sums, top, total = tile.visit(visited, refs, row, block, one_block, (sums, nothing, jnp.zeros_like(nothing)))
    scaled = jnp.ones_like(total)
    if p.has_sinks:
        # A sink is one more term of the sum of weights, without a value.
        sink = refs["sinks"][head].astype(jnp.float32) * tile.LOG2_E
        higher = jnp.maximum(top, sink)
        base = _finite(higher)
        scaled = jnp.exp2(top - base)
        top, total = higher, total * scaled + jnp.exp2(sink - base)
    # A row that saw nothing divides by 1 and gets zeros.
    saw = total > 0.0
    share = scaled / jnp.where(saw, total, 1.0)
    tile.store_rows(out, row, head, start, [part * share[:, None] for part in sums])
    logarithm = (_finite(top) + jnp.log2(jnp.where(saw, total, 1.0))) / tile.LOG2_E
    _store_numbers(lse, (row, head), start, jnp.where(saw, logarithm, tile.MASKED))


def _finite(top: jax.Array) -> jax.Array:
    """Returns what to take scores from: -inf less -inf would be NaN where a row saw nothing yet."""
    return jnp.where(top == tile.MASKED, 0.0, top)


def _store_numbers(ref: Any, at: tuple[Any, ...], start: Any, numbers: jax.Array) -> None:
    size = numbers.shape[0]
    inside = start + jnp.arange(size) < ref.shape[-1] if ref.shape[-1] % size else None
    plgpu.store(ref.at[*at, pl.ds(start, size)], numbers, mask=inside)
