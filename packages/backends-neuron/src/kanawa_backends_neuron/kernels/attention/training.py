"""attention.neuron.nki: attention over whole rows on NeuronCores, forward and backward; unverified on hardware."""

import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.merge import merge_sinks
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal

from kanawa_backends_neuron.kernels.attention.intervals import bounds_of, needs_bounds, not_interval, span_of
from kanawa_backends_neuron.kernels.attention.ranges import TILE, tile_pairs
from kanawa_backends_neuron.kernels.launch import launch

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

DTYPES = ("bfloat16", "float16", "float32")
LARGEST_HEAD = 256
#: Of a partition's 192 KiB of SBUF, what keys, values and their gradients may take; the rest is for blocks in flight.
ROW_BYTES = 144 * 1024
#: Loops over tiles are unrolled into the program: pairs of tiles of one row, which compiling time grows with.
MOST_PAIRS = 16_384
#: What stands for a log-sum-exp of -inf: all weights become exp(-1e30).
_NO_KEY = 1e30


class NkiAttention(Kernel):
    """Unverified on hardware: training and prefill over whole rows, masks by position and segments, GQA, cap, sinks.

    Masks are causal, window, chunk, prefix and segments, as far as the keys that a query sees lie side by side.
    """

    name: ClassVar[str] = "attention.neuron.nki"
    operation: ClassVar[str] = "attention"
    platforms: ClassVar[tuple[str, ...]] = ("neuron",)
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (("attention_forward", 2), ("attention_backward", 5))

    def supports(self, problem: AttentionProblem, device: "DeviceSpec | None") -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        widest = max(problem.head_dim, problem.v_head_dim)
        gap = not_interval(problem.mask)
        row, pairs = (
            row_bytes(problem),
            problem.group_size * tile_pairs(span_of(problem), problem.q_length, problem.kv_length),
        )
        return first_refusal(
            (problem.paged or problem.has_kv_lengths, "keys come from a cache; attention.neuron.decode takes it"),
            (problem.has_bias, "dense bias; the kernel takes none"),
            (problem.has_kv_positions, "kv_positions are an operand; the kernel's keys sit at 0, 1, 2, …"),
            (bool(gap), gap),
            (problem.dtype not in DTYPES, f"dtype {problem.dtype}; needs {' or '.join(DTYPES)}"),
            (widest > LARGEST_HEAD, f"head width {widest}; {LARGEST_HEAD} at most"),
            (
                row > ROW_BYTES,
                f"keys, values and gradients of a row of {problem.kv_length} keys take {row // 1024} KiB of a "
                f"partition's SBUF; {ROW_BYTES // 1024} at most: split the sequence over devices",
            ),
            (
                pairs > MOST_PAIRS,
                f"a program of {pairs} pairs of tiles for a row of {problem.q_length} queries and "
                f"{problem.kv_length} keys; {MOST_PAIRS} at most: split the sequence over devices",
            ),
        )

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, Dv] in v's dtype and the log-sum-exp, fp32 [B, H, T]."""
        arrays, static = _arrays(problem, operands), _static(problem)
        lead = arrays[0].shape[:3]
        outputs = (
            jax.ShapeDtypeStruct((*lead, problem.v_head_dim), arrays[0].dtype),
            jax.ShapeDtypeStruct((*lead, 1), jnp.float32),
        )
        out, lse = launch("attention.forward:attention_forward", outputs, arrays, *static)
        lse = lse.reshape(problem.batch, problem.num_heads, problem.q_length)
        lse = jnp.where(lse < -_NO_KEY / 2, -jnp.inf, lse)
        out = _unfolded(problem, out)
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
        arrays, static = _arrays(problem, operands), _static(problem)
        delta = row_delta(out, cotangents)
        rows = (*arrays[0].shape[:3], 1)
        # A row without keys has a log-sum-exp of -inf; its weights are exp(MASKED - 1e30).
        negative = jnp.where(jnp.isneginf(residuals), -_NO_KEY, -residuals).astype(jnp.float32)
        more = (_folded(problem, cotangents.astype(operands["q"].dtype)), negative.reshape(rows), delta.reshape(rows))
        outputs = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:3])
        dq, dk, dv = launch("attention.backward:attention_backward", outputs, (*arrays, *more), *static)
        grads = {"q": _unfolded(problem, dq), "k": _key_rows(problem, dk), "v": _key_rows(problem, dv)}
        if problem.has_sinks:
            grads["sinks"] = sinks_gradient(operands["sinks"], residuals, delta)
        return grads


def row_bytes(problem: AttentionProblem) -> int:
    """Returns what a row's keys and values, and for training their gradients, take of a partition of SBUF."""
    size, tiles = jnp.dtype(problem.dtype).itemsize, math.ceil(problem.kv_length / TILE)
    widths = (problem.head_dim, problem.v_head_dim)
    turned = [math.ceil(width / TILE) * problem.kv_length * size for width in widths]
    shared = 4 * problem.kv_length if problem.has_segments else 0
    if problem.mode != "train":
        return turned[0] + tiles * problem.v_head_dim * size + shared
    return sum(turned) + tiles * problem.head_dim * size + tiles * sum(widths) * 4 + shared


def _static(problem: AttentionProblem) -> tuple[float, float, tuple[bool, int, int, int]]:
    return problem.scale, problem.logit_cap or 0.0, tuple(span_of(problem))


def _arrays(problem: AttentionProblem, operands: Operands) -> tuple[jax.Array | None, ...]:
    """Returns q, k, v, ids and bounds as the kernels take them."""
    q_ids = kv_ids = bounds = None
    if problem.has_segments:
        q_ids = _every_row(problem, operands["q_segment_ids"].astype(jnp.float32)[..., None])
        kv_ids = _every_row(problem, operands["kv_segment_ids"].astype(jnp.float32))
    if needs_bounds(problem):
        bounds = _every_row(problem, bounds_of(problem, operands))
    k, v = (_key_major(operands[name]) for name in ("k", "v"))
    return _folded(problem, operands["q"]), k, v, q_ids, kv_ids, bounds


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
