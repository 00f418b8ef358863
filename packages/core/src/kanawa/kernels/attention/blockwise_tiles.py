"""Attention in tiles written out one after the other: for lengths that make few enough of them.

XLA's CPU backend runs each step of a loop on slices that it copies first; written out, a tile's operands are laid out
once, tiles that nobody sees don't exist, and those that everyone sees have no mask.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kanawa.arrays import products
from kanawa.arrays.plan import current_plan
from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention import tiles as tl
from kanawa.kernels.attention.dropout import row_words
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.merge import merge_sinks
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

#: Tiles of one span of queries whose scores are kept at a time: their maximum is taken once, which spares rescaling.
_TOGETHER = 4
#: So few tiles need no order: all of their scores at once are small.
_FREE = 16
#: Multiplications of the smallest product that isn't left to XLA: XLA's batched ones reach half its speed or less.
_SMALLEST = 64**3


class Tiling(NamedTuple):
    """Spans of queries and keys, and for each span of queries the spans of keys that it may see.

    `in_order` has one group of tiles wait for the one before it.
    """

    queries: list[tl.Span]
    keys: list[tl.Span]
    pairs: list[list[int]]
    in_order: bool


class _Sums(NamedTuple):
    """What softmax needs of the keys so far: values [B, K, G, T, D], sum of weights and top score [B, K, G, T, 1]."""

    values: jax.Array
    total: jax.Array
    top: jax.Array


def tiling(problem: AttentionProblem, queries: int, keys: int) -> Tiling:
    """Returns the problem cut into tiles of `queries` by `keys`."""
    rows, columns = tl.spans(problem.q_length, queries), tl.spans(problem.kv_length, keys)
    pairs = [[j for j, column in enumerate(columns) if tl.visible(problem, row, column) != "none"] for row in rows]
    return Tiling(rows, columns, pairs, sum(map(len, pairs)) > _FREE)


def forward(problem: AttentionProblem, operands: Operands, cut: Tiling) -> tuple[jax.Array, jax.Array]:
    """Returns (out, log-sum-exp fp32 [B, H, T], sinks included)."""
    k, v = ([tl.key_rows(operands[name], span) for span in cut.keys] for name in ("k", "v"))
    words = row_words(operands) if problem.dropout_rate else None
    outs, rows = [], []
    before: jax.Array | None = None
    for span, seen in zip(cut.queries, cut.pairs, strict=True):
        q = tl.query_rows(_scaled(problem, operands["q"]), span, problem)
        sums: _Sums | None = None
        for together in _groups(seen):
            q = _after(before, q) if cut.in_order else q
            scores = [_scores(problem, operands, q, k[j], span, cut.keys[j])[0] for j in together]
            factors = [words and tl.tile_factors(problem, words, span, cut.keys[j]) for j in together]
            sums = _attend(scores, [v[j] for j in together], factors, sums)
            before = sums.values
        shape = (*q.shape[:2], problem.group_size, span.stop - span.start)
        out, lse = _finish(problem, sums, shape)
        outs.append(tl.from_query_rows(_merged(out), problem))
        rows.append(lse.reshape(problem.batch, problem.num_heads, -1))
    out, lse = jnp.concatenate(outs, axis=1), jnp.concatenate(rows, axis=2)
    if problem.has_sinks:
        out, lse = merge_sinks(out, lse, operands["sinks"])
    return out.astype(operands["v"].dtype), lse


def backward(
    problem: AttentionProblem, operands: Operands, out: jax.Array, lse: jax.Array, dout: jax.Array, cut: Tiling
) -> dict[str, jax.Array]:
    """Returns cotangents in fp32, recomputing each tile's scores from the log-sum-exp.

    Scores are computed transposed, [B, K, S, G, T]: two of the three products with them then read them in order.
    """
    delta = row_delta(out, dout)
    # A row without keys has lse = -inf; its weights are 0, not exp(MASKED + inf).
    finite = jnp.where(jnp.isneginf(lse), jnp.inf, lse)
    k, v = ([tl.key_rows(operands[name], span) for span in cut.keys] for name in ("k", "v"))
    shares: dict[str, list[list[jax.Array]]] = {"k": [[] for _ in cut.keys], "v": [[] for _ in cut.keys]}
    bias = jnp.zeros(problem.bias_shape, jnp.float32) if problem.bias_shape else None
    words = row_words(operands) if problem.dropout_rate else None
    dq: list[jax.Array] = []
    before: jax.Array | None = None
    for span, seen in zip(cut.queries, cut.pairs, strict=True):
        q = tl.query_rows(_scaled(problem, operands["q"]), span, problem)
        d = tl.query_rows(dout.astype(operands["v"].dtype), span, problem)
        row_lse, row_d = (tl.per_row(x, span, problem)[:, :, None] for x in (finite, delta))
        parts: list[jax.Array] = []
        for number, j in enumerate(seen):
            if cut.in_order and number % _TOGETHER == 0:
                q, d = _after(before, q), _after(before, d)
            scores, slope = _scores(problem, operands, q, k[j], span, cut.keys[j], transposed=True)
            # Rounded as the product takes them: read by two, they would be written to memory in both widths.
            weights = jnp.exp(scores - row_lse).astype(d.dtype)
            dweights, used = _product(v[j], d, transpose_b=True).reshape(scores.shape), weights
            if words is not None:
                factors = _turned(tl.tile_factors(problem, words, span, cut.keys[j]))
                dweights, used = dweights * factors, _dropped(weights, factors)
            dscores = weights.astype(jnp.float32) * (dweights - row_d)
            if bias is not None:
                added = tl.bias_cotangent(problem, jnp.moveaxis(dscores, 2, -1))
                bias = _add_tile(bias, added, span, cut.keys[j])
            flat = (*scores.shape[:3], -1)
            shares["v"][j].append(_product(used.reshape(flat), d))
            dscores = (dscores if slope is None else dscores * slope).astype(q.dtype).reshape(flat)
            shares["k"][j].append(_product(dscores, q))
            parts.append(_product(dscores, k[j], transpose_a=True))
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

    XLA's CPU scheduler starts all that can be started, so that the scores of all tiles would be in memory at once, and
    its CPU compiler drops optimization barriers: what orders is a zero made of the leading zeros (at most 32) of one
    number's bits, which no simplification sees through and no NaN leaks from.
    """
    if before is None:
        return x
    bits = jax.lax.bitcast_convert_type(jnp.ravel(before)[0].astype(jnp.float32), jnp.uint32)
    return x + (jax.lax.clz(bits) >> jnp.uint32(6)).astype(x.dtype)


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
        turned = _turned
        scores = _product(k, q, transpose_b=True).reshape(*k.shape[:3], *rows)
    else:
        turned = _as_is
        scores = _product(q, k, transpose_b=True).reshape(*q.shape[:2], *rows, k.shape[2])
    if not sc.scale_in_queries(problem):
        scores = scores * problem.scale
    slope = None
    if problem.logit_cap is not None:
        # Before the mask: capped, MASKED would be -cap, a score like any other. d(cap * tanh(s / cap)) = 1 - tanh^2.
        share = jnp.tanh(scores / problem.logit_cap)
        scores, slope = problem.logit_cap * share, 1 - jnp.square(share)
    if problem.has_bias:
        scores = scores + turned(tl.tile_bias(problem, operands["bias"], queries, keys))
    if problem.has_alibi:
        scores = scores - turned(tl.tile_alibi(problem, operands, queries, keys))
    mask = tl.tile_mask(problem, operands, queries, keys)
    return scores if mask is None else jnp.where(turned(mask), scores, sc.MASKED), slope


def _dropped(weights: jax.Array, factors: jax.Array | None) -> jax.Array:
    return weights if factors is None else (weights.astype(jnp.float32) * factors).astype(weights.dtype)


def _merged(x: jax.Array) -> jax.Array:
    """Returns [B, K, G, T, …] as the rows of a product, [B, K, G * T, …]."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _turned(x: jax.Array) -> jax.Array:
    """Returns [B, K, G, T, S] as [B, K, S, G, T]."""
    return jnp.moveaxis(x, -1, 2)


def _as_is(x: jax.Array) -> jax.Array:
    return x


def _attend(scores: list[jax.Array], v: list[jax.Array], factors: list[jax.Array | None], sums: _Sums | None) -> _Sums:
    """Returns the sums after some more tiles of keys; `factors` are dropout's, which leaves the sum of weights alone.

    A tile without a key to see adds weights of exp(0), which the first real score rescales to nothing.
    """
    tops = [jnp.max(tile, axis=-1, keepdims=True) for tile in scores]
    # MASKED is finite, so that MASKED - MASKED gives exp(0) and no NaN, and a bias of -inf over a whole row exp(-inf).
    top = functools.reduce(jnp.maximum, tops, jnp.float32(sc.MASKED) if sums is None else sums.top)
    weights = [jnp.exp(tile - top).astype(x.dtype) for tile, x in zip(scores, v, strict=True)]
    total = _sum([jnp.sum(tile, axis=-1, keepdims=True, dtype=jnp.float32) for tile in weights], top.shape)
    dropped = [_dropped(tile, factor) for tile, factor in zip(weights, factors, strict=True)]
    parts = [_product(_merged(tile), x) for tile, x in zip(dropped, v, strict=True)]
    values = _sum(parts, parts[0].shape).reshape(*top.shape[:-1], -1)
    if sums is None:
        return _Sums(values, total, top)
    kept = jnp.exp(sums.top - top)
    return _Sums(sums.values * kept + values, sums.total * kept + total, top)


def _finish(problem: AttentionProblem, sums: _Sums | None, rows: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns (out fp32 [B, K, G, T, D], log-sum-exp [B, K, G, T]); rows that saw no key have 0 and -inf."""
    if sums is None:
        return jnp.zeros((*rows, problem.v_head_dim)), jnp.full(rows, -jnp.inf)
    values, total, top = sums
    if not (problem.may_mask_whole_rows or problem.has_bias):
        return values / total, (top + jnp.log(total))[..., 0]
    # Rows that saw nothing divide by 1 and take the logarithm of 1: what is chosen after must not come from a NaN.
    saw = top > sc.MASKED
    total = jnp.where(saw, total, 1.0)
    lse = jnp.where(saw, top + jnp.log(total), -jnp.inf)
    return values * jnp.where(saw, 1.0 / total, 0.0), lse[..., 0]


def _sum(parts: list[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    return functools.reduce(jnp.add, parts) if parts else jnp.zeros(shape, jnp.float32)


def _add_tile(total: jax.Array, tile: jax.Array, queries: tl.Span, keys: tl.Span) -> jax.Array:
    """Returns the bias's cotangent with a tile's added; dimensions that broadcast have all of them in one place."""
    rows, columns = (
        slice(*span) if size != 1 else slice(None) for span, size in ((queries, total.shape[2]), (keys, total.shape[3]))
    )
    return total.at[:, :, rows, columns].add(tile)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _bare_product(a: jax.Array, b: jax.Array, transpose_a: bool, transpose_b: bool) -> jax.Array:
    plan = current_plan().native_products
    # Each shard holds its own tiles, so that the call needs no splitting; only a plan that says no rules it out.
    multiplications = a.size * b.shape[-2 if transpose_b else -1]
    if plan is not False and products.available() and products.suits(a, b, multiplications, _SMALLEST):
        return products.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, dtype=jnp.float32)
    return _general(a, b, transpose_a, transpose_b)


@_bare_product.defjvp
def _product_derivative(
    transpose_a: bool, transpose_b: bool, primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (a, b), (da, db) = primals, tangents
    out = _bare_product(a, b, transpose_a, transpose_b)
    return out, _general(da, b, transpose_a, transpose_b) + _general(a, db, transpose_a, transpose_b)


def _general(a: jax.Array, b: jax.Array, transpose_a: bool, transpose_b: bool) -> jax.Array:
    dimensions = (((2 if transpose_a else 3,), (3 if transpose_b else 2,)), ((0, 1), (0, 1)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _product(a: jax.Array, b: jax.Array, *, transpose_a: bool = False, transpose_b: bool = False) -> jax.Array:
    """Returns a @ b of [B, K, ...] in fp32, either one transposed in its last two dimensions."""
    return _bare_product(a, b, transpose_a, transpose_b)
