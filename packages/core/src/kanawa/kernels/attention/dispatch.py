"""The public call: checks shapes, makes the problem, and runs the best kernel.

Legend: B rows, T queries, S keys, H query heads, K key heads, D head width, Dv value width; pages: P in the pool, N
tokens each, R table entries per row.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from kanawa.arrays.plan import current_plan
from kanawa.errors import KernelError
from kanawa.kernels.attention.checks import check_operands
from kanawa.kernels.attention.dropout import dropout_ids
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.problem import (
    ATTENTION,
    PAGED_AXES,
    RAGGED_AXES,
    AttentionProblem,
    Mode,
)
from kanawa.kernels.masks import CAUSAL, MaskSpec
from kanawa.kernels.run import run
from kanawa.kernels.sharded import split_operands

#: Of these dtypes the difference of two positions, or one with a window's width taken off, may not be one.
_WRAPPING = tuple(jnp.dtype(name) for name in ("uint8", "uint16", "uint32", "int8", "int16"))


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: MaskSpec = CAUSAL,
    q_positions: jax.Array | None = None,
    kv_positions: jax.Array | None = None,
    q_segment_ids: jax.Array | None = None,
    kv_segment_ids: jax.Array | None = None,
    prefix_lengths: jax.Array | None = None,
    kv_lengths: jax.Array | None = None,
    lookahead: jax.Array | None = None,
    bias: jax.Array | None = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    page_table: jax.Array | None = None,
    query_starts: jax.Array | None = None,
    scale: float | None = None,
    logit_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    mode: Mode = "train",
) -> jax.Array:
    """Returns softmax(mask(cap(scale * q k^T) + bias - alibi)) v: [B, T, H, Dv] in the dtype of q.

    Softmax runs in fp32. Query head h uses key head h // (H / K). A query that may attend to
    nothing gets zeros.

    Args:
        q: [B, T, H, D].
        k, v: [B, S, K, D] and [B, S, K, Dv]; with a page table, pools [P, N, K, D] and
            [P, N, K, Dv]. Pools of uint16 hold the bits of q's dtype: XLA's CPU compiler widens all
            of a bfloat16 array that something is written into or read from in places.
        mask: which keys a query attends to. Segment ids, where there are any, are added to it.
        q_positions: int [B, T] or [T]. Default: with kv_lengths, each row's last positions; else 0,
            1, 2, …
        kv_positions: int [B, S] or [S]; default 0, 1, 2, …
        q_segment_ids, kv_segment_ids: int [B, T], [B, S]; the second defaults to the first where
            T = S.
        prefix_lengths: int [B], for a mask with a prefix.
        kv_lengths: int [B]; keys from there on don't exist.
        lookahead: int [B, T] or [T]: causality shows a query so many positions after its own too. Default 0.
        bias: float, [B, H, T, S], any of them 1; differentiable.
        sinks: float [H]: logits that join the softmax without a value; differentiable.
        alibi_slopes: float [H]: slope * |query position - key position| is taken off the scores
            (arXiv:2108.12409). Constants: no gradient.
        page_table: int [B, R]: the pages of each row, in order. Needs kv_lengths. Entries behind a
            row's last key may hold anything.
        query_starts: int [sequences + 1]: q is one row [1, T, H, D] and sequence i owns queries
            query_starts[i] to query_starts[i + 1]; page_table and kv_lengths then have a row per
            sequence.
        scale: default D ** -0.5.
        logit_cap: scores become cap * tanh(scores / cap).
        dropout_rate: the share of weights that is dropped after the softmax; in mode "train" only.
        dropout_key: a PRNG key, for a rate above 0: it drops the same on any mesh, by any kernel.
        mode: "train" may be differentiated; "prefill" and "decode" never are.

    Raises KernelError where arguments don't fit together, a value at hand breaks a rule, or no kernel applies.
    """
    rows = {"q_positions": q_positions, "kv_positions": kv_positions, "lookahead": lookahead}
    rows |= {"q_segment_ids": q_segment_ids, "kv_segment_ids": kv_segment_ids}
    operands: dict[str, Any] = {"q": q, "k": k, "v": v, **{name: _rows(x) for name, x in rows.items()}}
    operands |= {"prefix_lengths": prefix_lengths, "kv_lengths": kv_lengths, "bias": bias, "sinks": sinks}
    operands |= {"alibi_slopes": alibi_slopes, "page_table": page_table, "query_starts": query_starts}
    operands = {name: x for name, x in operands.items() if x is not None}
    if q_segment_ids is not None:
        # Segment ids count, even if the mask doesn't say so: leaving them out would mix documents without a
        # word.
        mask = mask & MaskSpec(segments=True)
        if k.shape[1] == q.shape[1]:
            operands.setdefault("kv_segment_ids", operands["q_segment_ids"])
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    problem = _problem(operands, mask, scale, logit_cap, float(dropout_rate), mode)
    check_operands(problem, operands, has_dropout_key=dropout_key is not None)
    if dropout_key is not None and problem.dropout_rate:
        # Two words of whatever the key's implementation is, so that kernels need to know none.
        words = jax.random.bits(dropout_key, (2,), jnp.uint32)
        operands |= {"dropout_key": words, **dropout_ids(problem)}
    return _attend(*_with_enough_key_heads(*_with_moved_queries(problem, operands)))


def _attend(problem: AttentionProblem, operands: dict[str, Any]) -> jax.Array:
    """Returns the output by the plan's strategy for split sequences, else by the best kernel."""
    strategy = current_plan().distributed_over_shards("attention")
    out: jax.Array | None = None if strategy is None else strategy.through(problem, operands)
    if out is None:
        out = run(ATTENTION, *_with_positions(problem, operands), axes=_axes(problem))
    return out


def _problem(
    operands: dict[str, Any],
    mask: MaskSpec,
    scale: float,
    logit_cap: float | None,
    dropout_rate: float,
    mode: Mode,
) -> AttentionProblem:
    q, k, v = operands["q"], operands["k"], operands["v"]
    dimensions = {"q": 4, "k": 4, "v": 4, "page_table": 2, "query_starts": 1}
    for name, count in dimensions.items():
        if name in operands and operands[name].ndim != count:
            message = f"attention: {name} has shape {operands[name].shape}; it must have {count} dimensions"
            raise KernelError(message)
    table = operands.get("page_table")
    starts = operands.get("query_starts")
    bias = operands.get("bias")
    return AttentionProblem(
        batch=q.shape[0],
        q_length=q.shape[1],
        kv_length=k.shape[1] if table is None else k.shape[1] * table.shape[1],
        num_heads=q.shape[2],
        num_kv_heads=k.shape[2],
        head_dim=q.shape[3],
        v_head_dim=v.shape[3],
        dtype=str(q.dtype),
        mask=mask,
        scale=scale,
        logit_cap=None if logit_cap is None else float(logit_cap),
        bias_shape=None if bias is None else bias.shape,
        has_sinks="sinks" in operands,
        has_alibi="alibi_slopes" in operands,
        dropout_rate=dropout_rate,
        has_q_positions="q_positions" in operands,
        has_kv_positions="kv_positions" in operands,
        has_kv_lengths="kv_lengths" in operands,
        has_lookahead="lookahead" in operands,
        mode=mode,
        page_size=None if table is None else k.shape[1],
        kv_bits=table is not None and k.dtype == jnp.uint16,
        ragged_sequences=None if starts is None else starts.shape[0] - 1,
        row_invariant=current_plan().row_invariant,
    )


def _axes(problem: AttentionProblem) -> dict[str, Any]:
    axes: dict[str, Any] = dict(PAGED_AXES) if problem.paged else {}
    return {**axes, **RAGGED_AXES} if problem.ragged_sequences is not None else axes


def _with_moved_queries(problem: AttentionProblem, operands: dict[str, Any]) -> tuple[AttentionProblem, dict[str, Any]]:
    """Returns both, without `lookahead` where queries at later positions see the same: hardly a kernel takes it."""
    only_causal = not problem.mask.uses - {"causal", "prefix", "segments"} and not problem.has_alibi
    # Positions of a ragged row follow from its cuts, which the paged kernels read.
    if not problem.has_lookahead or not only_causal or problem.ragged_sequences is not None:
        return problem, operands
    moved = q_positions(problem, operands) + operands["lookahead"]
    rest = {name: x for name, x in operands.items() if name != "lookahead"}
    return dataclasses.replace(problem, has_lookahead=False, has_q_positions=True), {**rest, "q_positions": moved}


def _with_enough_key_heads(problem: AttentionProblem, operands: dict[str, Any]) -> tuple[AttentionProblem, Any]:
    """Returns both, with key heads repeated where query heads are split in more parts than there are key heads.

    A single key head stays: every shard has it whole.
    """
    split = split_operands(ATTENTION, ATTENTION.operand_axes, {"q": operands["q"]})
    heads, keys = problem.num_heads, problem.num_kv_heads
    parts = heads // split.shapes["q"][2]
    if parts == 1 or keys == 1 or keys % parts == 0 or heads % parts:
        return problem, operands
    enough = math.lcm(keys, parts)
    repeated = {name: jnp.repeat(operands[name], enough // keys, axis=2) for name in ("k", "v")}
    return dataclasses.replace(problem, num_kv_heads=enough), {**operands, **repeated}


def _with_positions(problem: AttentionProblem, operands: dict[str, Any]) -> tuple[AttentionProblem, dict[str, Any]]:
    """Returns both, with explicit query positions if queries are split over the mesh."""
    axes = {**ATTENTION.operand_axes, **_axes(problem)}
    # A shard that holds later queries would take them for 0, 1, 2, …: implied positions are those of the whole row.
    split = split_operands(ATTENTION, axes, {"q": operands["q"]})
    if "length" not in split.assigned or problem.has_q_positions:
        return problem, operands
    positions = q_positions(problem, operands)
    return dataclasses.replace(problem, has_q_positions=True), {
        **operands,
        "q_positions": positions,
    }


def _rows(x: jax.Array | None) -> jax.Array | None:
    """Returns positions or ids as rows, of a dtype whose differences are numbers of it."""
    if x is None:
        return None
    x = x.astype(jnp.int32) if x.dtype in _WRAPPING else x
    return x[None] if x.ndim == 1 else x
