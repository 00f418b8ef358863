"""Attention in tiles, unrolled in the program.

XLA's CPU backend copies the slices of each step of a loop. Unrolled, a tile's operands are laid out once, tiles that
the mask empties are left out, and tiles that it leaves whole have no mask.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.dropout import row_words
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.merge import merge_sinks
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

from kanawa_backends_cpu.kernels.attention import tiles as tl
from kanawa_backends_cpu.kernels.attention.matmuls import matmul

#: Tiles of one span of queries whose scores are in memory at a time: they share one maximum, which saves rescaling.
_TOGETHER = 4
#: Up to so many tiles need no order: all of their scores at once are small.
_UNORDERED = 16


class Tiling(NamedTuple):
    """Spans of queries and keys, and for each span of queries the spans of keys that it may see.

    `in_order`: whether one group of tiles waits for the one before it.
    """

    queries: list[tl.Span]
    keys: list[tl.Span]
    pairs: list[list[int]]
    in_order: bool


class _Sums(NamedTuple):
    """The online softmax so far: values [B, K, G, T, D], sum of weights and largest score [B, K, G, T, 1]."""

    values: jax.Array
    total: jax.Array
    top: jax.Array


def tile_problem(problem: AttentionProblem, queries: int, keys: int) -> Tiling:
    """Returns the tiling of a problem into tiles of `queries` by `keys`."""
    rows, columns = tl.spans(problem.q_length, queries), tl.spans(problem.kv_length, keys)
    pairs = [[j for j, column in enumerate(columns) if tl.visible(problem, row, column) != "none"] for row in rows]
    return Tiling(rows, columns, pairs, sum(map(len, pairs)) > _UNORDERED)


def forward(problem: AttentionProblem, operands: Operands, tiling: Tiling) -> tuple[jax.Array, jax.Array]:
    """Returns (out, log-sum-exp fp32 [B, H, T], sinks included)."""
    k, v = ([tl.key_rows(operands[name], span) for span in tiling.keys] for name in ("k", "v"))
    words = row_words(operands) if problem.dropout_rate else None
    outs, rows = [], []
    before: jax.Array | None = None
    for span, seen in zip(tiling.queries, tiling.pairs, strict=True):
        q = tl.query_rows(_scaled(problem, operands["q"]), span, problem)
        sums: _Sums | None = None
        for together in _groups(seen):
            q = _after(before, q) if tiling.in_order else q
            scores = [_scores(problem, operands, q, k[j], span, tiling.keys[j])[0] for j in together]
            factors = [words and tl.tile_factors(problem, words, span, tiling.keys[j]) for j in together]
            sums = _attend(scores, [v[j] for j in together], factors, sums)
            before = sums.values
        shape = (*q.shape[:2], problem.group_size, span.stop - span.start)
        out, lse = _finish(problem, sums, shape)
        outs.append(tl.from_query_rows(_as_rows(out), problem))
        rows.append(lse.reshape(problem.batch, problem.num_heads, -1))
    out, lse = jnp.concatenate(outs, axis=1), jnp.concatenate(rows, axis=2)
    if problem.has_sinks:
        out, lse = merge_sinks(out, lse, operands["sinks"])
    return out.astype(operands["v"].dtype), lse


def backward(
    problem: AttentionProblem, operands: Operands, out: jax.Array, lse: jax.Array, dout: jax.Array, tiling: Tiling
) -> dict[str, jax.Array]:
    """Returns cotangents in fp32, recomputing each tile's scores from the log-sum-exp.

    Scores are computed transposed, [B, K, S, G, T]: two of the three matmuls with them then read them in memory order.
    """
    delta = row_delta(out, dout)
    # A row without keys has lse = -inf; its weights are 0, not exp(MASKED + inf).
    finite = jnp.where(jnp.isneginf(lse), jnp.inf, lse)
    k, v = ([tl.key_rows(operands[name], span) for span in tiling.keys] for name in ("k", "v"))
    shares: dict[str, list[list[jax.Array]]] = {"k": [[] for _ in tiling.keys], "v": [[] for _ in tiling.keys]}
    bias = jnp.zeros(problem.bias_shape, jnp.float32) if problem.bias_shape else None
    words = row_words(operands) if problem.dropout_rate else None
    dq: list[jax.Array] = []
    before: jax.Array | None = None
    for span, seen in zip(tiling.queries, tiling.pairs, strict=True):
        q = tl.query_rows(_scaled(problem, operands["q"]), span, problem)
        d = tl.query_rows(dout.astype(operands["v"].dtype), span, problem)
        row_lse, row_d = (tl.per_row(x, span, problem)[:, :, None] for x in (finite, delta))
        parts: list[jax.Array] = []
        for number, j in enumerate(seen):
            if tiling.in_order and number % _TOGETHER == 0:
                q, d = _after(before, q), _after(before, d)
            scores, slope = _scores(problem, operands, q, k[j], span, tiling.keys[j], transposed=True)
            # Rounded for the matmul here: unrounded, they would be written to memory in both widths.
            weights = jnp.exp(scores - row_lse).astype(d.dtype)
            dweights, used = matmul(v[j], d, transpose_b=True).reshape(scores.shape), weights
            if words is not None:
                factors = _transposed(tl.tile_factors(problem, words, span, tiling.keys[j]))
                dweights, used = dweights * factors, _dropped(weights, factors)
            dscores = weights.astype(jnp.float32) * (dweights - row_d)
            if bias is not None:
                added = tl.bias_cotangent(problem, jnp.moveaxis(dscores, 2, -1))
                bias = _add_tile(bias, added, span, tiling.keys[j])
            flat = (*scores.shape[:3], -1)
            shares["v"][j].append(matmul(used.reshape(flat), d))
            dscores = (dscores if slope is None else dscores * slope).astype(q.dtype).reshape(flat)
            shares["k"][j].append(matmul(dscores, q))
            parts.append(matmul(dscores, k[j], transpose_a=True))
            before = parts[-1]
        total = _sum(parts, q.shape) * problem.scale
        dq.append(tl.from_query_rows(total, problem))
    grads = {"q": jnp.concatenate(dq, axis=1)}
    for name, x in (("k", k), ("v", v)):
        sums = [_sum(parts, tile.shape) for parts, tile in zip(shares[name], x, strict=True)]
        grads[name] = jnp.concatenate([tile.transpose(0, 2, 1, 3) for tile in sums], axis=1)
    if not sc.scale_in_queries(problem):
        grads["k"] = grads["k"] * problem.scale
    if bias is not None:
        grads["bias"] = bias
    if problem.has_sinks:
        grads["sinks"] = sinks_gradient(operands["sinks"], lse, delta)
    return grads


def _groups(seen: list[int]) -> list[list[int]]:
    return [seen[start : start + _TOGETHER] for start in range(0, len(seen), _TOGETHER)]


def _after(before: jax.Array | None, x: jax.Array) -> jax.Array:
    """Returns x, computed after `before`.

    XLA's CPU scheduler starts everything that is ready, so that the scores of all tiles would be in memory at once, and
    its CPU compiler drops optimization barriers. The order comes from adding a zero, computed from the leading zeros
    (at most 32) of one number's bits: no simplification removes it, and NaN doesn't propagate through it.
    """
    if before is None:
        return x
    bits = jax.lax.bitcast_convert_type(jnp.ravel(before)[0].astype(jnp.float32), jnp.uint32)
    ordered: jax.Array = x + (jax.lax.clz(bits) >> jnp.uint32(6)).astype(x.dtype)
    return ordered


def _scaled(problem: AttentionProblem, q: jax.Array) -> jax.Array:
    return q * problem.scale if sc.scale_in_queries(problem) else q


def _scores(
    problem: AttentionProblem,
    operands: Operands,
    q: jax.Array,
    k: jax.Array,
    queries: tl.Span,
    keys: tl.Span,
    *,
    transposed: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Returns a tile's masked scores in fp32 and the slope of their soft cap: [B, K, G, T, S], or [B, K, S, G, T]."""
    rows = (problem.group_size, queries.stop - queries.start)
    if transposed:
        arrange = _transposed
        scores = matmul(k, q, transpose_b=True).reshape(*k.shape[:3], *rows)
    else:
        arrange = _as_is
        scores = matmul(q, k, transpose_b=True).reshape(*q.shape[:2], *rows, k.shape[2])
    if not sc.scale_in_queries(problem):
        scores = scores * problem.scale
    slope = None
    if problem.logit_cap is not None:
        # Before the mask: capped, MASKED would be -cap, a score like any other. d(cap * tanh(s / cap)) = 1 - tanh^2.
        share = jnp.tanh(scores / problem.logit_cap)
        scores, slope = problem.logit_cap * share, 1 - jnp.square(share)
    if problem.has_bias:
        scores = scores + arrange(tl.tile_bias(problem, operands["bias"], queries, keys))
    if problem.has_alibi:
        scores = scores - arrange(tl.tile_alibi(problem, operands, queries, keys))
    mask = tl.tile_mask(problem, operands, queries, keys)
    return scores if mask is None else jnp.where(arrange(mask), scores, sc.MASKED), slope


def _dropped(weights: jax.Array, factors: jax.Array | None) -> jax.Array:
    return weights if factors is None else (weights.astype(jnp.float32) * factors).astype(weights.dtype)


def _as_rows(x: jax.Array) -> jax.Array:
    """Returns [B, K, G, T, …] as the rows of a matmul, [B, K, G * T, …]."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _transposed(x: jax.Array) -> jax.Array:
    """Returns [B, K, G, T, S] as [B, K, S, G, T]."""
    return jnp.moveaxis(x, -1, 2)


def _as_is(x: jax.Array) -> jax.Array:
    return x


def _attend(scores: list[jax.Array], v: list[jax.Array], factors: list[jax.Array | None], sums: _Sums | None) -> _Sums:
    """Returns the sums after some more tiles of keys; dropout's `factors` don't change the sum of weights.

    A fully masked tile adds weights of exp(0), which the first real score rescales to zero.
    """
    tops = [jnp.max(tile, axis=-1, keepdims=True) for tile in scores]
    # MASKED is finite, so that MASKED - MASKED gives exp(0) and no NaN, and a bias of -inf over a whole row exp(-inf).
    top = functools.reduce(jnp.maximum, tops, jnp.float32(sc.MASKED) if sums is None else sums.top)
    top = tl.top_for(v[0].dtype.name, top)
    weights = [jnp.exp(tile - top).astype(x.dtype) for tile, x in zip(scores, v, strict=True)]
    total = _sum([jnp.sum(tile, axis=-1, keepdims=True, dtype=jnp.float32) for tile in weights], top.shape)
    dropped = [_dropped(tile, factor) for tile, factor in zip(weights, factors, strict=True)]
    parts = [matmul(_as_rows(tile), x) for tile, x in zip(dropped, v, strict=True)]
    values = _sum(parts, parts[0].shape).reshape(*top.shape[:-1], -1)
    if sums is None:
        return _Sums(values, total, top)
    decay = jnp.exp(sums.top - top)
    return _Sums(sums.values * decay + values, sums.total * decay + total, top)


def _finish(problem: AttentionProblem, sums: _Sums | None, rows: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns (out fp32 [B, K, G, T, D], log-sum-exp [B, K, G, T]); fully masked rows have 0 and -inf."""
    if sums is None:
        return jnp.zeros((*rows, problem.v_head_dim)), jnp.full(rows, -jnp.inf)
    values, total, top = sums
    if not (problem.may_mask_whole_rows or problem.has_bias):
        return values / total, (top + jnp.log(total))[..., 0]
    # Fully masked rows divide by 1 and take the logarithm of 1: `where` must not select from a NaN.
    saw = top > sc.MASKED
    total = jnp.where(saw, total, 1.0)
    lse = jnp.where(saw, top + jnp.log(total), -jnp.inf)
    return values * jnp.where(saw, 1.0 / total, 0.0), lse[..., 0]


def _sum(parts: list[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    return functools.reduce(jnp.add, parts) if parts else jnp.zeros(shape, jnp.float32)


def _add_tile(total: jax.Array, tile: jax.Array, queries: tl.Span, keys: tl.Span) -> jax.Array:
    """Returns the bias's cotangent with a tile's added; dimensions that broadcast have size 1."""
    rows, columns = (
        slice(*span) if size != 1 else slice(None) for span, size in ((queries, total.shape[2]), (keys, total.shape[3]))
    )
    return total.at[:, :, rows, columns].add(tile)
