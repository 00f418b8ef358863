"""attention.cpu.invariant: training, prefill and decoding by one native function, with the same bits for each query.

For programs that have to agree bit for bit, as a rollout and the training step do (`ExecutionPlan.row_invariant`), and
for every prefill over pages of bits, where it is the fastest: each query reads only the keys that it sees, in place.
Softmax is online (Milakov and Gimelshein, arXiv 1805.02867) over blocks of 16 keys; multiplications and sums are fp32,
and weights are rounded to bfloat16.
"""

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal, refuse

from kanawa_backends_cpu.kernels.attention.blockwise import BlockwiseAttention
from kanawa_backends_cpu.native import available

if TYPE_CHECKING:
    from kanawa_backends_cpu.kernels.attention.invariant_code import Shape
    from kanawa_backends_cpu.native.calls import NativeCall

#: Masks under which each query sees one contiguous run of keys; segments are compared key by key.
_MASKS = frozenset({"causal", "window", "chunk", "segments"})
#: Query heads of a work item: their queries and sums stay in the second cache.
_LINES = 16
_BLOCK = 16
_WIDEST = 256


class InvariantAttention(Kernel):
    """bfloat16 over dense keys or pages of bits; the gradients are those of blockwise attention. Needs llvmlite."""

    name: ClassVar[str] = "attention.cpu.invariant"
    priority: ClassVar[int] = 30
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"pages of bits"})

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support for row-invariant problems in bfloat16, and for chunks of prompts over pages of bits."""
        p, widths = problem, (problem.head_dim, problem.v_head_dim)
        masks = ", ".join(sorted(p.mask.uses - _MASKS))
        verdict = first_refusal(
            (
                not p.row_invariant and (not p.paged or p.q_length == 1),
                "rows needn't be invariant; others are faster",
            ),
            (p.dtype != "bfloat16", f"{p.dtype}; it takes bfloat16"),
            (p.paged and not p.kv_bits, "pages of numbers; it takes pages of bits"),
            (p.ragged_sequences is not None, "queries are ragged; it takes rows of equally many"),
            (p.has_bias, "it takes no dense bias"),
            (p.has_sinks, "it takes no sinks"),
            (p.has_kv_positions, "keys have positions of their own; it takes them in order"),
            (bool(masks), f"mask of {masks}; it takes causal, window, chunk and segments"),
            (any(width % _BLOCK for width in widths), f"heads of {widths}; it takes multiples of {_BLOCK}"),
            (max(widths) > _WIDEST, f"heads of {widths}; it takes up to {_WIDEST}"),
            (p.group_size > _LINES, f"{p.group_size} query heads a key head; it takes up to {_LINES}"),
        )
        why_not = available.why_not() if verdict else None
        return verdict if why_not is None else refuse(why_not)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T])."""
        p = problem
        first, end = seen_keys(p, operands)
        rows, nothing = (p.batch, p.q_length), jnp.zeros((1, 1), jnp.int32)
        table = operands.get("page_table")
        # A row of dense keys is one page.
        table = jnp.arange(p.batch, dtype=jnp.int32)[:, None] if table is None else table.astype(jnp.int32)
        segments = [nothing, nothing]
        if p.has_segments:
            segments = [operands[name].astype(jnp.int32) for name in ("q_segment_ids", "kv_segment_ids")]
        sums = jax.ShapeDtypeStruct((*rows, p.num_heads), jnp.float32)
        results = [jax.ShapeDtypeStruct((*rows, p.num_heads, p.v_head_dim), jnp.bfloat16), sums, sums]
        call = native_call(call_shape(p))
        out, top, total = call(results, *(operands[name] for name in "qkv"), table, first, end, *segments)
        lse = jnp.where(top > sc.MASKED, top + jnp.log(total), -jnp.inf)
        return out, jnp.swapaxes(lse, 1, 2)

    def backward(
        self, problem: AttentionProblem, operands: Operands, out: jax.Array, residuals: jax.Array, cotangents: jax.Array
    ) -> dict[str, jax.Array]:  # fmt: skip
        """Returns fp32 cotangents, recomputing each tile's scores from the log-sum-exp."""
        return BlockwiseAttention().backward(problem, operands, out, residuals, cotangents)


def seen_keys(problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Returns of each query the first key it sees and the one after the last, int32 [B, T]; segments don't count."""
    shape = (problem.batch, problem.q_length)
    position = jnp.broadcast_to(q_positions(problem, operands), shape).astype(jnp.int32)
    end = jnp.full(shape, problem.kv_length, jnp.int32)
    if problem.has_kv_lengths:
        end = jnp.minimum(end, operands["kv_lengths"].astype(jnp.int32)[:, None])
    first, (left, right) = jnp.zeros_like(end), problem.mask.window or (None, None)
    if left is not None:
        first = jnp.maximum(position - left, 0)
    if problem.mask.causal:
        right = 0 if right is None else min(right, 0)
    if right is not None:
        end = jnp.minimum(end, position + right + 1)
    if problem.mask.chunk is not None:
        start = position // problem.mask.chunk * problem.mask.chunk
        first, end = jnp.maximum(first, start), jnp.minimum(end, start + problem.mask.chunk)
    return first, jnp.maximum(end, 0)


def call_shape(problem: AttentionProblem) -> "Shape":
    """Returns the shape of the function that computes a problem."""
    from kanawa_backends_cpu.kernels.attention.invariant_code import Shape

    return Shape(
        heads=problem.num_kv_heads,
        group=problem.group_size,
        width=problem.head_dim,
        v_width=problem.v_head_dim,
        page=problem.page_size or problem.kv_length,
        queries=min(problem.q_length, max(1, _LINES // problem.group_size)),
        scale=problem.scale,
        cap=problem.logit_cap,
        segments=problem.has_segments,
    )


@functools.cache
def native_call(shape: "Shape") -> "NativeCall":
    """Returns the compiled function of a shape."""
    from kanawa_backends_cpu.kernels.attention.invariant_code import count_items, emit_item
    from kanawa_backends_cpu.native.calls import NativeCall

    return NativeCall(
        "attention_rows", functools.partial(emit_item, shape), functools.partial(count_items, shape),
        operands=8, results=3,
    )  # fmt: skip
