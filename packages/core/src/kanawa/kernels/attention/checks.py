"""What can't be asked of attention: shapes that don't fit, missing operands."""

from typing import Any, get_args

from kanawa.errors import KernelError
from kanawa.kernels.attention.problem import AttentionProblem, Mode


def check(problem: AttentionProblem, operands: dict[str, Any]) -> None:
    """Raises KernelError naming every way in which operands don't fit the problem or each other."""
    problems = [*_shapes(problem, operands), *_heads(problem, operands), *_needs(problem, operands)]
    if problems:
        message = f"attention {problem.describe()}: " + "; ".join(problems)
        raise KernelError(message)


def _shapes(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    rows = p.batch if p.ragged_sequences is None else p.ragged_sequences
    # Positions and ids may have one row for all rows of the batch.
    queries = ((p.batch, p.q_length), (1, p.q_length))
    keys = ((p.batch, p.kv_length), (1, p.kv_length))
    expected = {
        "q_positions": queries,
        "kv_positions": keys,
        "q_segment_ids": queries,
        "kv_segment_ids": keys,
        "prefix_lengths": ((p.batch,),),
        "kv_lengths": ((rows,),),
        "sinks": ((p.num_heads,),),
    }
    problems = [
        f"{name} has shape {operands[name].shape}, expected {' or '.join(map(str, allowed))}"
        for name, allowed in expected.items()
        if name in operands and operands[name].shape not in allowed
    ]
    table = operands.get("page_table")
    if table is not None and table.shape[0] != rows:
        problems.append(f"page_table has {table.shape[0]} rows, expected {rows}")
    full = (p.batch, p.num_heads, p.q_length, p.kv_length)
    if p.bias_shape is not None and not _broadcasts(p.bias_shape, full):
        problems.append(f"bias {p.bias_shape} doesn't broadcast to {full}")
    return problems


def _heads(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    k, v = operands["k"].shape, operands["v"].shape
    rules = (
        (k[-1] != p.head_dim, f"k has width {k[-1]} and q {p.head_dim}"),
        (v[:3] != k[:3], f"v {v} doesn't match k {k}"),
        (p.num_heads % p.num_kv_heads != 0, f"{p.num_heads} heads over {p.num_kv_heads} key heads"),
        (not p.paged and k[0] != p.batch, f"q has {p.batch} rows and k {k[0]}"),
    )
    return [text for broken, text in rules if broken]


def _needs(p: AttentionProblem, operands: dict[str, Any]) -> list[str]:
    ids = ("q_segment_ids" in operands, "kv_segment_ids" in operands)
    ragged = p.ragged_sequences is not None
    # Segments and prefixes compare ids and key positions alone; all else needs to know where queries are among the
    # keys.
    positional = p.mask.uses - {"segments", "prefix"}
    placed = p.has_q_positions or p.has_kv_lengths or p.q_length == p.kv_length
    no_prefix = p.mask.needs_prefix and "prefix_lengths" not in operands
    modes = get_args(Mode)
    rules = (
        (p.mode not in modes, f"mode {p.mode!r} is not one of {', '.join(modes)}"),
        (p.has_segments and not all(ids), "segments need q_segment_ids and kv_segment_ids"),
        (no_prefix, "the mask has a prefix: pass prefix_lengths"),
        (p.paged and not p.has_kv_lengths, "page_table needs kv_lengths"),
        (ragged and not (p.paged and p.batch == 1), "query_starts needs one row and a page_table"),
        (p.paged and p.has_kv_positions, "kv_positions can't be given with a page_table"),
        (
            bool(positional) and not placed,
            f"{p.q_length} queries and {p.kv_length} keys: pass q_positions or kv_lengths to say where they are",
        ),
        (p.logit_cap is not None and p.logit_cap <= 0, f"logit_cap {p.logit_cap} must be positive"),
    )
    return [text for broken, text in rules if broken]


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return len(shape) == len(full) and all(s in (1, f) for s, f in zip(shape, full, strict=True))
