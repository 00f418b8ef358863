"""Page tables and ragged queries, brought to plain dense attention: the meaning, not the fast way.

Legend: P pages in the pool, N tokens in a page, R page-table entries per row, S = R * N keys per row.
"""

import dataclasses

import jax
import jax.numpy as jnp

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands


def gather_pages(problem: AttentionProblem, operands: Operands) -> tuple[AttentionProblem, Operands]:
    """Returns an equal dense problem and its operands, values of keys that don't exist being zero.

    k, v: [P, N, K, D]; page_table: int32 [rows, R]; key j of a row sits at position j, and exists if it is less than
    kv_lengths[row].
    """
    if problem.page_size is None:
        return problem, with_existing_values(operands)
    table = operands["page_table"]
    dense = {name: x for name, x in operands.items() if name not in ("k", "v", "page_table")}
    for name in ("k", "v"):
        # An entry that no key needs may be anything; clamped, it reads some page, whose keys don't exist.
        pages = operands[name][jnp.clip(table, 0, operands[name].shape[0] - 1)]
        rows, entries, size, heads, width = pages.shape
        dense[name] = as_floats(problem, pages.reshape(rows, entries * size, heads, width))
    problem = dataclasses.replace(problem, page_size=None, kv_bits=False)
    dense = with_existing_values(dense)
    if problem.ragged_sequences is None:
        return problem, dense
    return _one_row(problem, dense)


def with_existing_values(operands: Operands) -> dict[str, jax.Array]:
    """Returns the operands of a cache [B, S, K, D] with zeros for values behind a row's end.

    They are weighed with zero, and zero times a NaN that another sequence left there is NaN.
    """
    if "kv_lengths" not in operands:
        return dict(operands)
    v = operands["v"]
    exists = jnp.arange(v.shape[1], dtype=jnp.int32)[None] < operands["kv_lengths"][:, None]
    return {**operands, "v": jnp.where(exists[:, :, None, None], v, jnp.zeros((), v.dtype))}


def as_floats(problem: AttentionProblem, x: jax.Array) -> jax.Array:
    """Returns what was read of pages in the problem's dtype."""
    return jax.lax.bitcast_convert_type(x, jnp.dtype(problem.dtype)) if problem.kv_bits else x


def _one_row(problem: AttentionProblem, operands: Operands) -> tuple[AttentionProblem, Operands]:
    """Returns ragged queries as one row whose sequences are segments.

    Sequence i owns queries query_starts[i] to query_starts[i + 1]; they are its last ones, so query
    t sits at kv_lengths[i] - (query_starts[i + 1] - t) unless q_positions say otherwise.
    """
    starts, lengths = operands["query_starts"], operands["kv_lengths"]
    sequences, keys = operands["k"].shape[:2]
    token = jnp.arange(problem.q_length, dtype=starts.dtype)
    # side="right": sequences without queries share their start with the next one, which owns the token.
    owner = jnp.searchsorted(starts, token, side="right") - 1
    known = jnp.clip(owner, 0, sequences - 1)
    one_row = dict(operands)
    if not problem.has_q_positions:
        one_row["q_positions"] = (lengths[known] - (starts[known + 1] - token))[None]
    index = jnp.arange(keys, dtype=jnp.int32)
    exists = index[None] < lengths[:, None]
    # Two ids that never meet: a key that doesn't exist has 0, a query that no sequence owns has -1. So such a query
    # sees nothing, and such a key is seen by none.
    segment = jnp.where(exists, jnp.arange(1, sequences + 1, dtype=jnp.int32)[:, None], 0)
    queried = (owner >= 0) & (owner < sequences)
    one_row["q_segment_ids"] = jnp.where(queried, owner.astype(jnp.int32) + 1, -1)[None]
    one_row["kv_segment_ids"] = segment.reshape(1, sequences * keys)
    one_row["kv_positions"] = jnp.broadcast_to(index, (sequences, keys)).reshape(1, -1)
    for name in ("k", "v"):
        x: jax.Array = operands[name]
        one_row[name] = x.reshape(1, sequences * keys, *x.shape[2:])
    for name in ("query_starts", "kv_lengths"):
        one_row.pop(name)
    dense = dataclasses.replace(
        problem,
        kv_length=sequences * keys,
        mask=dataclasses.replace(problem.mask, segments=True),
        has_q_positions=True,
        has_kv_positions=True,
        has_kv_lengths=False,
        ragged_sequences=None,
    )
    return dense, one_row
