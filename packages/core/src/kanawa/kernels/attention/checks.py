"""What can't be asked of attention: shapes and dtypes that don't fit, missing operands, indices out of range."""

from typing import Any, get_args

import numpy as np

from kanawa.kernels.attention.problem import AttentionProblem, Mode
from kanawa.kernels.bad_input import (
    first_bad,
    mixed_dtypes,
    not_floats,
    not_integers,
    not_positive,
    outside,
    refuse_bad_input,
    values,
)

_POSITIONS = ("q_positions", "kv_positions", "lookahead")
_IDS = ("q_segment_ids", "kv_segment_ids")
_COUNTS = ("prefix_lengths", "kv_lengths", "page_table", "query_starts")


def check_operands(problem: AttentionProblem, operands: dict[str, Any], *, has_dropout_key: bool = False) -> None:
    """Raises KernelError naming every way in which operands don't fit the problem or each other."""
    p = problem
    broken = [*_shapes(p, operands), *_heads(p, operands), *_needs(p, operands), *_dtypes(p, operands)]
    broken += not_positive(scale=p.scale, logit_cap=p.logit_cap)
    broken += outside(0.0, 1.0, dropout_rate=p.dropout_rate)
    if p.dropout_rate and not has_dropout_key:
        broken.append(f"dropout_rate {p.dropout_rate:g} needs a dropout_key")
    if p.dropout_rate and p.mode != "train":
        broken.append(f"dropout_rate {p.dropout_rate:g} in mode {p.mode!r}: weights are dropped in training only")
    # Values are compared with each other only where shapes are right.
    refuse_bad_input(f"attention {problem.describe()}", broken or _values(problem, operands))


def _dtypes(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    of_bits = ("k", "v") if p.kv_bits else ()
    wide = p.kv_bits and operands["q"].dtype.itemsize != 2
    floats = [name for name in ("q", "k", "v", "bias", "sinks", "alibi_slopes") if name not in of_bits]
    return [
        *([f"k is uint16, bits of a float of 16, and q is {operands['q'].dtype}"] if wide else []),
        *not_floats(operands, tuple(floats)),
        *mixed_dtypes(operands, ("k", "v") if p.kv_bits else ("q", "k", "v")),
        *not_integers(operands, _POSITIONS, "positions"),
        *not_integers(operands, _IDS, "ids"),
        *not_integers(operands, _COUNTS, "they"),
    ]


def _values(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    """Returns what is wrong with the numbers themselves, of the operands that are at hand."""
    known = {name: values(operands.get(name)) for name in _COUNTS}
    broken = []
    lengths, table, starts = (known[name] for name in ("kv_lengths", "page_table", "query_starts"))
    if lengths is not None:
        reach = f"the page table reaches {p.kv_length} keys" if p.paged else f"there are {p.kv_length} keys"
        broken += first_bad("kv_lengths", lengths, (lengths < 0) | (lengths > p.kv_length), reach)
    prefix = known["prefix_lengths"]
    if prefix is not None:
        broken += first_bad("prefix_lengths", prefix, prefix < 0, "a length is at least 0")
    if table is not None and lengths is not None and p.page_size is not None:
        pages = operands["k"].shape[0]
        needed = np.arange(table.shape[1]) * p.page_size < lengths[:, None]
        rule = f"the row's keys need it, and the pool has pages 0 to {pages - 1}"
        broken += first_bad("page_table", table, needed & ((table < 0) | (table >= pages)), rule)
    if starts is not None:
        # Prepended with 0: a negative first start is a decrease too.
        falls = np.diff(starts, prepend=0) < 0
        broken += first_bad("query_starts", starts, falls, "starts are at least 0 and don't decrease")
        broken += first_bad("query_starts", starts, starts > p.q_length, f"there are {p.q_length} queries")
    return broken


def _shapes(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    rows = p.batch if p.ragged_sequences is None else p.ragged_sequences
    # Positions and ids may have one row for all rows of the batch.
    queries = ((p.batch, p.q_length), (1, p.q_length))
    keys = ((p.batch, p.kv_length), (1, p.kv_length))
    expected = {
        "q_positions": queries,
        "kv_positions": keys,
        "lookahead": queries,
        "q_segment_ids": queries,
        "kv_segment_ids": keys,
        "prefix_lengths": ((p.batch,),),
        "kv_lengths": ((rows,),),
        "sinks": ((p.num_heads,),),
        "alibi_slopes": ((p.num_heads,),),
    }
    problems = [
        f"{name} has shape {operands[name].shape}, expected {' or '.join(map(str, allowed))}"
        for name, allowed in expected.items()
        if name in operands and operands[name].shape not in allowed
    ]
    table = operands.get("page_table")
    if table is not None and (table.ndim != 2 or table.shape[0] != rows):
        problems.append(f"page_table has shape {table.shape}, expected ({rows}, entries)")
    full = (p.batch, p.num_heads, p.q_length, p.kv_length)
    if p.bias_shape is not None and not _broadcasts(p.bias_shape, full):
        problems.append(f"bias {p.bias_shape} doesn't broadcast to {full}")
    return problems


def _heads(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    q, k, v = (operands[name].shape for name in "qkv")
    rules = (
        (k[-1] != p.head_dim, f"k has width {k[-1]} and q {p.head_dim}"),
        (v[:3] != k[:3], f"v {v} doesn't match k {k}"),
        (
            p.num_kv_heads == 0 or p.num_heads % p.num_kv_heads != 0,
            f"{p.num_heads} heads over {p.num_kv_heads} key heads: each key head serves as many query heads",
        ),
        (min(p.q_length, p.kv_length, p.head_dim, p.v_head_dim) == 0, f"q {q}, k {k} and v {v} hold nothing"),
        (not p.paged and k[0] != p.batch, f"q has {p.batch} rows and k {k[0]}"),
    )
    return [text for broken, text in rules if broken]


def _needs(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    ids = ("q_segment_ids" in operands, "kv_segment_ids" in operands)
    ragged = p.ragged_sequences is not None
    # Segments and prefixes compare ids and key positions alone; all else needs to know where queries are among the
    # keys.
    positional = p.mask.uses - {"segments", "prefix"} or p.has_alibi
    placed = p.has_q_positions or p.has_kv_lengths or p.q_length == p.kv_length
    no_prefix = p.mask.needs_prefix and "prefix_lengths" not in operands
    modes = get_args(Mode)
    rules = (
        (p.mode not in modes, f"mode {p.mode!r} is not one of {', '.join(modes)}"),
        (p.has_segments and not all(ids), "segments need q_segment_ids and kv_segment_ids"),
        (no_prefix, "the mask has a prefix: pass prefix_lengths"),
        (p.paged and not p.has_kv_lengths, "page_table needs kv_lengths"),
        (ragged and not (p.paged and p.batch == 1), "query_starts needs one row and a page_table"),
        (p.paged and p.has_kv_positions, "kv_positions and a page_table exclude each other"),
        (
            bool(positional) and not placed,
            f"{p.q_length} queries and {p.kv_length} keys: pass q_positions or kv_lengths to say where they are",
        ),
    )
    return [text for broken, text in rules if broken]


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return len(shape) == len(full) and all(s in (1, f) for s, f in zip(shape, full, strict=True))
