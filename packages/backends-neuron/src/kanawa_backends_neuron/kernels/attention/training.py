"""attention.neuron.nki: attention over whole rows on NeuronCores, forward and backward; unverified on hardware."""

import functools
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.merge import merge, merge_sinks
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_neuron.kernels.attention.intervals import bounds_of, needs_bounds, not_interval, span_of
from kanawa_backends_neuron.kernels.attention.ranges import BLOCK, TILE, Span, tile_pairs
from kanawa_backends_neuron.kernels.launch import launch

DTYPES = ("bfloat16", "float16", "float32")
LARGEST_HEAD = 256
#: Of a partition's 192 KiB of SBUF, what keys, values and their gradients may take; the rest is for blocks in flight.
ROW_BYTES = 144 * 1024
#: Loops over tiles are unrolled into the program: pairs of tiles of one row, which compiling time grows with.
MOST_PAIRS = 16_384
#: Longer rows are cut, and put together again by their log-sum-exp.
MOST_CALLS = 64
_MOST_PIECES = 16
#: What stands for a log-sum-exp of -inf: all weights become exp(-1e30).
_NO_KEY = 1e30


class NkiAttention(Kernel):
    """Unverified on hardware: training and prefill over whole rows, masks by position and segments, GQA, cap, sinks.

    Masks are causal, window, chunk, prefix and segments, as far as the keys that a query sees lie side by side.
    """

    name: ClassVar[str] = "attention.neuron.nki"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (("attention_forward", 2), ("attention_backward", 5))

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        widest = max(problem.head_dim, problem.v_head_dim)
        gap, calls = not_interval(problem.mask), len(parts_of(problem))
        return first_refusal(
            (problem.paged or problem.has_kv_lengths, "keys come from a cache; attention.neuron.decode takes it"),
            (problem.has_bias, "dense bias; the kernel takes none"),
            (problem.has_kv_positions, "kv_positions are an operand; the kernel's keys sit at 0, 1, 2, …"),
            (bool(gap), gap),
            (problem.dtype not in DTYPES, f"dtype {problem.dtype}; needs {' or '.join(DTYPES)}"),
            (widest > LARGEST_HEAD, f"head width {widest}; {LARGEST_HEAD} at most"),
            (
                calls > MOST_CALLS,
                f"{problem.q_length} queries and {problem.kv_length} keys would take more than {MOST_CALLS} programs "
                f"whose keys fit in SBUF: split the sequence over devices",
            ),
        )

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, Dv] in v's dtype and the log-sum-exp, fp32 [B, H, T]."""
        arrays = _arrays(problem, operands)
        outs, sums = [], []
        pieces = _by_queries(problem)
        for queries, parts in pieces:
            out, lse = None, None
            for part in parts:
                more = _part_forward(problem, arrays, part)
                out, lse = more if out is None or lse is None else merge(out, lse, *more)
            if out is None or lse is None:
                out, lse = _nothing(problem, queries)
            # What was merged is fp32, and what wasn't stands beside it.
            outs.append(out if len(pieces) == 1 else out.astype(jnp.float32))
            sums.append(lse)
        out, lse = jnp.concatenate(outs, axis=1), jnp.concatenate(sums, axis=2)
        if problem.has_sinks:
            # A sink has no value: it joins once, after all keys.
            out, lse = merge_sinks(out, lse, operands["sinks"])
        return out.astype(operands["v"].dtype), lse

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of q, k, v and sinks from out and a log-sum-exp, maybe over more keys."""
        arrays = _arrays(problem, operands)
        delta = row_delta(out, cotangents)
        rows = (*arrays.q.shape[:3], 1)
        # A row without keys has a log-sum-exp of -inf; its weights are exp(MASKED - 1e30).
        negative = jnp.where(jnp.isneginf(residuals), -_NO_KEY, -residuals).astype(jnp.float32)
        dout = _folded(problem, cotangents.astype(operands["q"].dtype))
        more = (dout, negative.reshape(rows), delta.reshape(rows))
        dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in arrays[:3])
        parts = parts_of(problem)
        for part in parts:
            grads = _part_backward(problem, arrays, more, part)
            if len(parts) == 1:
                dq, dk, dv = grads
                break
            q, k = slice(part.q_first, part.q_end), slice(part.k_first, part.k_end)
            wide = [x.astype(jnp.float32) for x in grads]
            dq, dk, dv = dq.at[:, :, q].add(wide[0]), dk.at[:, k].add(wide[1]), dv.at[:, k].add(wide[2])
        named = {"q": _unfolded(problem, dq), "k": _key_rows(problem, dk), "v": _key_rows(problem, dv)}
        if problem.has_sinks:
            named["sinks"] = sinks_gradient(operands["sinks"], residuals, delta)
        return named


class Part(NamedTuple):
    """The queries and keys of one call."""

    q_first: int
    q_end: int
    k_first: int
    k_end: int


@functools.lru_cache(maxsize=256)
def parts_of(problem: AttentionProblem) -> tuple[Part, ...]:
    """Returns the calls that a problem takes, one if its keys fit; those in which no query sees a key are left out."""
    for pieces in range(1, _MOST_PIECES + 1):
        queries, keys = (_cut(length, pieces) for length in (problem.q_length, problem.kv_length))
        if row_bytes(problem, keys[0][1]) > ROW_BYTES:
            continue
        counts = {(part := Part(*q, *k)): _pairs(problem, part) for q in queries for k in keys}
        if max(counts.values()) <= MOST_PAIRS:
            return tuple(part for part, count in counts.items() if pieces == 1 or count)
    return (Part(0, 0, 0, 0),) * (MOST_CALLS + 1)


def _cut(length: int, pieces: int) -> list[tuple[int, int]]:
    """Returns (first, end) of pieces of whole blocks, the last maybe shorter."""
    size = math.ceil(math.ceil(length / pieces) / BLOCK) * BLOCK
    return [(first, min(length, first + size)) for first in range(0, length, size)]


def _pairs(problem: AttentionProblem, part: Part) -> int:
    return problem.group_size * tile_pairs(_span(problem, part), part.q_end - part.q_first, part.k_end - part.k_first)


def _span(problem: AttentionProblem, part: Part) -> Span:
    span = span_of(problem)
    offset = part.k_first - part.q_first
    # Chunks are of positions, not of distances: where queries begin elsewhere, their bounds alone say them.
    return span._replace(offset=offset, chunk=0 if part.q_first else span.chunk)


def _by_queries(problem: AttentionProblem) -> list[tuple[tuple[int, int], list[Part]]]:
    """Returns the parts of each piece of the queries, all of which are there."""
    parts = parts_of(problem)
    pieces = sorted({(part.q_first, part.q_end) for part in parts})
    edges = [0, *(edge for piece in pieces for edge in piece), problem.q_length]
    missing = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    return [(piece, [p for p in parts if (p.q_first, p.q_end) == piece]) for piece in sorted(pieces + missing)]


def row_bytes(problem: AttentionProblem, keys: int) -> int:
    """Returns what a row's keys and values, and for training their gradients, take of a partition of SBUF."""
    size, tiles = jnp.dtype(problem.dtype).itemsize, math.ceil(keys / TILE)
    widths = (problem.head_dim, problem.v_head_dim)
    transposed = [math.ceil(width / TILE) * keys * size for width in widths]
    shared = 2 * 4 * keys if problem.has_segments else 0
    if problem.mode != "train":
        return transposed[0] + tiles * problem.v_head_dim * size + shared
    return sum(transposed) + tiles * problem.head_dim * size + tiles * sum(widths) * 4 + shared


class _Arrays(NamedTuple):
    """The operands as the kernels take them: a row for each row of the batch and key head."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    q_ids: jax.Array | None
    kv_ids: jax.Array | None
    bounds: jax.Array | None

    def part(self, part: Part) -> "_Arrays":
        """Returns the operands of one call."""
        q, k = slice(part.q_first, part.q_end), slice(part.k_first, part.k_end)
        return _Arrays(
            self.q[:, :, q],
            self.k[:, k],
            self.v[:, k],
            None if self.q_ids is None else self.q_ids[:, q],
            None if self.kv_ids is None else self.kv_ids[:, :, k].reshape(self.kv_ids.shape[0], -1),
            None if self.bounds is None else self.bounds[:, q] - float(part.k_first),
        )


def _arrays(problem: AttentionProblem, operands: Operands) -> _Arrays:
    q_ids = kv_ids = bounds = None
    if problem.has_segments:
        q_ids = _every_row(problem, _planes(operands["q_segment_ids"], axis=-1))
        kv_ids = _every_row(problem, _planes(operands["kv_segment_ids"], axis=-2))
    if needs_bounds(problem):
        bounds = _every_row(problem, bounds_of(problem, operands))
    k, v = (_key_major(operands[name]) for name in ("k", "v"))
    return _Arrays(_folded(problem, operands["q"]), k, v, q_ids, kv_ids, bounds)


def _planes(ids: jax.Array, axis: int) -> jax.Array:
    """Returns the upper and the lower 16 bits of int32 ids as fp32, which holds each exactly."""
    ids = ids.astype(jnp.int32)
    return jnp.stack([ids >> 16, ids & 0xFFFF], axis=axis).astype(jnp.float32)


def _part_forward(problem: AttentionProblem, arrays: _Arrays, part: Part) -> tuple[jax.Array, jax.Array]:
    """Returns out [B, T, H, Dv] and the log-sum-exp, fp32 [B, H, T], of a part's queries over its keys."""
    mine = arrays.part(part)
    lead = mine.q.shape[:3]
    outputs = (
        jax.ShapeDtypeStruct((*lead, problem.v_head_dim), mine.q.dtype),
        jax.ShapeDtypeStruct((*lead, 1), jnp.float32),
    )
    static = (problem.scale, problem.logit_cap or 0.0, tuple(_span(problem, part)))
    out, lse = launch("attention.forward:attention_forward", outputs, mine, *static)
    lse = lse.reshape(problem.batch, problem.num_heads, lead[2])
    return _unfolded(problem, out), jnp.where(lse < -_NO_KEY / 2, -jnp.inf, lse)


def _part_backward(
    problem: AttentionProblem, arrays: _Arrays, more: tuple[jax.Array, ...], part: Part
) -> tuple[jax.Array, ...]:
    """Returns what a part gives of dq, dk and dv, as the kernel lays them."""
    mine = arrays.part(part)
    outputs = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in mine[:3])
    static = (problem.scale, problem.logit_cap or 0.0, tuple(_span(problem, part)))
    rest = (x[:, :, part.q_first : part.q_end] for x in more)
    return launch("attention.backward:attention_backward", outputs, (*mine, *rest), *static)


def _nothing(problem: AttentionProblem, queries: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Returns out and log-sum-exp of queries that see no key."""
    length = queries[1] - queries[0]
    out = jnp.zeros((problem.batch, length, problem.num_heads, problem.v_head_dim), jnp.dtype(problem.dtype))
    return out, jnp.full((problem.batch, problem.num_heads, length), -jnp.inf, jnp.float32)


def _folded(problem: AttentionProblem, x: jax.Array) -> jax.Array:
    """Returns [B, T, H, D] as [B * K, G, T, D]: the query heads of a key head lie side by side."""
    rows = (problem.batch * problem.num_kv_heads, problem.group_size)
    return x.swapaxes(1, 2).reshape(*rows, x.shape[1], x.shape[3])


def _unfolded(problem: AttentionProblem, x: jax.Array) -> jax.Array:
    """Undoes `_folded`."""
    return x.reshape(problem.batch, problem.num_heads, *x.shape[2:]).swapaxes(1, 2)


def _key_major(x: jax.Array) -> jax.Array:
    """Returns [B, S, K, D] as [B * K, S, D]."""
    batch, keys, heads, width = x.shape
    return x.swapaxes(1, 2).reshape(batch * heads, keys, width)


def _key_rows(problem: AttentionProblem, x: jax.Array) -> jax.Array:
    """Undoes `_key_major`."""
    return x.reshape(problem.batch, problem.num_kv_heads, *x.shape[1:]).swapaxes(1, 2)


def _every_row(problem: AttentionProblem, x: jax.Array) -> jax.Array:
    """Returns [B or 1, …] for every row and key head: [B * K, …]."""
    whole = jnp.broadcast_to(x[:, None], (problem.batch, problem.num_kv_heads, *x.shape[1:]))
    return whole.reshape(problem.batch * problem.num_kv_heads, *x.shape[1:])
