"""Attention in two nested loops, over blocks of queries and of keys for each: for lengths of very many blocks."""

from typing import Any

import jax
import jax.numpy as jnp

from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.blocks import (
    add_block,
    block_problem,
    key_block,
    key_block_ranges,
    query_block,
    with_positions,
)
from kanawa.kernels.attention.gradient import (
    bias_gradient,
    block_gradient,
    row_delta,
    sinks_gradient,
)
from kanawa.kernels.attention.merge import merge_sinks
from kanawa.kernels.attention.operands import mask_array
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands


def forward(problem: AttentionProblem, operands: Operands, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """Returns (out, log-sum-exp fp32 [B, H, T], sinks included)."""
    block = block_problem(problem, queries, keys)
    explicit = with_positions(problem, operands)
    # Blocks that the mask rules out for all of a block's queries are never visited: half of a causal mask's.
    first, end = map(jnp.asarray, key_block_ranges(problem, queries, keys))
    empty = _nothing_seen(block)

    def one_query_block(_: None, item: tuple[jax.Array, ...]) -> tuple[None, Any]:
        index, start, stop = item
        mine = query_block(explicit, index, queries)

        def one_key_block(j: jax.Array, seen: Any) -> Any:
            return _attend(block, key_block(mine, j, keys), seen)

        # Sinks have no value, so they join once, after all keys, as one more term of the sum of weights.
        out, lse = _finish(block, jax.lax.fori_loop(start, stop, one_key_block, empty))
        if problem.has_sinks:
            out, lse = merge_sinks(out, lse, operands["sinks"])
        return None, (out.astype(operands["v"].dtype), lse)

    index = jnp.arange(problem.q_length // queries, dtype=jnp.int32)
    _, (out, lse) = jax.lax.scan(one_query_block, None, (index, first, end))
    # [blocks, B, queries, H, D] -> [B, T, H, D], and below [blocks, B, H, queries] -> [B, H, T].
    out = out.transpose(1, 0, 2, 3, 4).reshape(problem.batch, problem.q_length, problem.num_heads, problem.v_head_dim)
    lse = lse.transpose(1, 2, 0, 3)
    return out, lse.reshape(problem.batch, problem.num_heads, problem.q_length)


def backward(
    problem: AttentionProblem,
    operands: Operands,
    out: jax.Array,
    lse: jax.Array,
    dout: jax.Array,
    queries: int,
    keys: int,
) -> dict[str, jax.Array]:
    """Returns cotangents, recomputing each block's scores from the log-sum-exp."""
    block = block_problem(problem, queries, keys)
    # The row's sum of out * dout stands for the softmax's own gradient, which would need all of a row's weights.
    delta = row_delta(out, dout)
    explicit = {**with_positions(problem, operands), "dout": dout}
    first, end = map(jnp.asarray, key_block_ranges(problem, queries, keys))
    whole = {n: jnp.zeros(operands[n].shape, jnp.float32) for n in ("k", "v")}
    if problem.has_bias:
        whole["bias"] = jnp.zeros(operands["bias"].shape, jnp.float32)
    # dq belongs to the block of queries at hand and leaves the outer scan as its output; only dk and dv are
    # carried.
    no_dq = jnp.zeros((problem.batch, queries, *operands["q"].shape[2:]), jnp.float32)

    def one_query_block(whole: Any, item: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
        index, start, stop = item
        mine = query_block(explicit, index, queries)
        lse_rows, delta_rows = (
            jax.lax.dynamic_slice_in_dim(x, index * queries, queries, 2, allow_negative_indices=False)
            for x in (lse, delta)
        )

        def one_key_block(j: jax.Array, total: tuple[jax.Array, Any]) -> Any:
            # dk and dv of all keys travel through both loops: each query block adds to the keys it saw. They stay
            # fp32, because hundreds of blocks add to them.
            dq, whole = total
            theirs = key_block(mine, j, keys)
            dout = theirs.pop("dout")
            mask = mask_array(block, theirs)
            grads = block_gradient(block, theirs, mask, lse_rows, delta_rows, dout)
            added = {n: add_block(whole[n], grads[n], 1, j * keys) for n in ("k", "v")}
            if problem.has_bias:
                dbias = bias_gradient(grads["scores"], block)
                at = (index * queries, j * keys)
                added["bias"] = _add_bias_block(whole["bias"], dbias, at)
            return dq + grads["q"], added

        dq, whole = jax.lax.fori_loop(start, stop, one_key_block, (no_dq, whole))
        return whole, dq

    index = jnp.arange(problem.q_length // queries, dtype=jnp.int32)
    grads, dq = jax.lax.scan(one_query_block, whole, (index, first, end))
    grads["q"] = dq.transpose(1, 0, 2, 3, 4).reshape(operands["q"].shape)
    if problem.has_sinks:
        grads["sinks"] = sinks_gradient(operands["sinks"], lse, delta)
    return grads


def _nothing_seen(problem: AttentionProblem) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns (weighted values [B, T, H, D], sum of weights, largest score), both shaped like score rows, fp32."""
    rows = (problem.batch, problem.q_length, problem.num_heads, problem.v_head_dim)
    per_row = sc.rows_to_scores(jnp.zeros((problem.batch, problem.num_heads, problem.q_length)), problem)
    return jnp.zeros(rows), per_row, jnp.full_like(per_row, sc.MASKED)


def _attend(problem: AttentionProblem, operands: Operands, seen: Any) -> Any:
    """Returns what `_nothing_seen` describes after one more block of keys.

    A block without a key to see adds weights of exp(0), which the first real score rescales to nothing.
    """
    values, total, top = seen
    scores, _ = sc.masked_scores(problem, operands, mask_array(problem, operands))
    # Online softmax: what was summed under a smaller maximum is scaled down to the new one. A maximum of MASKED is
    # finite, so that MASKED - MASKED gives exp(0) and no NaN.
    # A bias of -inf over a whole row is safe too: the maximum starts at MASKED, and exp(-inf - MASKED) is 0.
    higher = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - higher)
    kept = jnp.exp(top - higher)
    added = sc.weigh_values(weights, operands["v"], problem, jnp.float32)
    total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
    return values * _per_value(kept, problem) + added, total, higher


def _finish(problem: AttentionProblem, seen: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (out fp32 [B, T, H, D], log-sum-exp [B, H, T]); rows that saw no key have 0 and -inf."""
    values, total, top = seen
    # Rows that saw nothing divide by 1 and take the logarithm of 1: what is chosen after must not come from a NaN.
    saw = top > sc.MASKED
    share = jnp.where(saw, 1.0 / jnp.where(saw, total, 1.0), 0.0)
    lse = jnp.where(saw, top + jnp.log(jnp.where(saw, total, 1.0)), -jnp.inf)
    return values * _per_value(share, problem), sc.scores_to_rows(lse, problem)


def _per_value(x: jax.Array, problem: AttentionProblem) -> jax.Array:
    """Returns numbers shaped like score rows as [B, T, H, 1]."""
    return sc.scores_to_rows(x, problem).transpose(0, 2, 1)[..., None]


def _add_bias_block(total: jax.Array, block: jax.Array, at: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the bias cotangent with a block's added; broadcast dimensions always start at 0."""
    starts = [jnp.int32(0)] * 2
    starts += [s if total.shape[i + 2] != 1 else jnp.int32(0) for i, s in enumerate(at)]
    old = jax.lax.dynamic_slice(total, starts, block.shape, allow_negative_indices=False)
    return jax.lax.dynamic_update_slice(total, old + block, starts, allow_negative_indices=False)
