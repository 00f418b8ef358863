"""attention.cpu.native: one new token a row over pages, as one function that LLVM compiles for the processor.

Such a step is limited by memory: its keys and values are read once, some hundred bytes here and some there. The
function reads them in place, prefetches the next block, and holds its accumulators in registers; each work item is a
few of a row's key heads. Softmax is online (Milakov and Gimelshein, arXiv 1805.02867); numbers and sums are fp32.

Legend: B rows, P pages of N tokens, R table entries a row, K key heads, G query heads a key head, D head width, Dv that
of values.
"""

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal, refuse

from kanawa_backends_cpu.kernels.attention.paged import Sums, finish
from kanawa_backends_cpu.native import available

if TYPE_CHECKING:
    from kanawa_backends_cpu.kernels.attention.native_code import Shape
    from kanawa_backends_cpu.native.calls import NativeCall

#: Accumulators of a key head, in floats, up to which they stay in the first cache.
_MOST_VALUES = 4096
#: Vectors of a key head's queries or accumulators: LLVM takes 4 s for the code of 256 of them, 40 s for that of 1000.
_MOST_VECTORS = 320
#: Rows for each thread from which on an item has several key heads, so that none waits long for the last.
_ROWS_PER_THREAD = 4
#: Keys of a block, and the bytes of its keys and values that the first cache holds.
_BLOCK, _BLOCK_BYTES = 16, 32 * 1024
#: Masks under which each query sees one contiguous run of keys.
_MASKS = frozenset({"causal", "window", "chunk"})


class NativeAttention(Kernel):
    """A decoding step over pages, compiled by LLVM; needs llvmlite."""

    name: ClassVar[str] = "attention.cpu.native"
    priority: ClassVar[int] = 20
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"pages of bits"})

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support for one query a row over pages of float32, or of bfloat16 as bits."""
        masks = ", ".join(sorted(problem.mask.uses - _MASKS))
        lanes = min(_lanes(problem.head_dim), _lanes(problem.v_head_dim))
        values = problem.group_size * problem.v_head_dim
        widths = (problem.head_dim, problem.v_head_dim)
        vectors = problem.group_size * max(width // max(_lanes(width), 1) for width in widths)
        verdict = first_refusal(
            (not problem.paged, "keys are dense; it takes pages"),
            (problem.q_length != 1, f"{problem.q_length} queries a row; it takes one"),
            (problem.ragged_sequences is not None, "queries are ragged; it takes rows of one each"),
            (problem.mode == "train", "it has no backward; it takes decode"),
            (problem.has_bias, "it takes no dense bias"),
            (problem.has_kv_positions, "keys have positions of their own; it takes them in order"),
            (bool(masks), f"mask of {masks}; it takes causal, window and chunk"),
            (
                not problem.kv_bits and problem.dtype != "float32",
                f"pages of {problem.dtype}; it takes float32, or bits",
            ),
            (problem.kv_bits and problem.dtype != "bfloat16", f"bits of {problem.dtype}; it takes those of bfloat16"),
            (lanes < 1, f"heads of {problem.head_dim} and {problem.v_head_dim}; it takes multiples of 4"),
            (values > _MOST_VALUES, f"{values} values a key head; it takes up to {_MOST_VALUES}"),
            (vectors > _MOST_VECTORS, f"{vectors} vectors a key head; it takes up to {_MOST_VECTORS}"),
        )
        why_not = available.why_not() if verdict else None
        return verdict if why_not is None else refuse(why_not)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T], sinks included)."""
        heads = (problem.batch, problem.num_kv_heads, problem.group_size)
        # Scaled here, at no cost; a cap applies to scaled scores.
        q = operands["q"].astype(jnp.float32).reshape(*heads, problem.head_dim) * problem.scale
        first, end = _seen_keys(problem, operands)
        shapes = (heads, heads, (*heads, problem.v_head_dim))
        results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        table = operands["page_table"].astype(jnp.int32)
        call = native_call(call_shape(problem))
        return finish(problem, operands, Sums(*call(results, q, operands["k"], operands["v"], table, first, end)))


def _seen_keys(problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Returns of each row the first key it sees and the one after the last, int32 [B]."""
    end = jnp.clip(operands["kv_lengths"], 0, problem.kv_length).astype(jnp.int32)
    first = jnp.zeros_like(end)
    if not problem.mask.uses:
        return first, end
    position = jnp.broadcast_to(q_positions(problem, operands)[:, 0], end.shape).astype(jnp.int32)
    left, right = problem.mask.window or (None, None)
    if left is not None:
        first = jnp.maximum(position - left, 0)
    if problem.mask.causal:
        right = 0 if right is None else min(right, 0)
    if right is not None:
        end = jnp.minimum(end, position + right + 1)
    if problem.mask.chunk is not None:
        start = position // problem.mask.chunk * problem.mask.chunk
        first, end = jnp.maximum(first, start), jnp.minimum(end, start + problem.mask.chunk)
    return first, end


def _lanes(width: int) -> int:
    """Returns the floats of a vector that a head of a width is cut into, 0 if it can't be cut."""
    return next((lanes for lanes in (16, 8, 4) if width % lanes == 0), 0)


def call_shape(problem: AttentionProblem) -> "Shape":
    """Returns the shape of the function that computes a problem."""
    from kanawa_backends_cpu.kernels.attention.native_code import Shape

    return Shape(
        heads=problem.num_kv_heads,
        together=_together(problem),
        group=problem.group_size,
        width=problem.head_dim,
        v_width=problem.v_head_dim,
        lanes=_lanes(problem.head_dim),
        v_lanes=_lanes(problem.v_head_dim),
        page=problem.page_size or 1,
        bits=problem.kv_bits,
        cap=problem.logit_cap,
    )


def _together(problem: AttentionProblem) -> int:
    """Returns the key heads of an item: as many as a cache holds a block of, where there are rows for all threads.

    A page holds all heads of a token side by side: read by one item, it comes from memory as one stream.
    """
    from kanawa_backends_cpu.native.calls import helper_threads

    if problem.batch < _ROWS_PER_THREAD * (helper_threads() + 1):
        return 1
    size = _BLOCK * (problem.head_dim + problem.v_head_dim) * (2 if problem.kv_bits else 4)
    heads = problem.num_kv_heads
    return max(n for n in range(1, heads + 1) if heads % n == 0 and (n == 1 or n * size <= _BLOCK_BYTES))


@functools.cache
def native_call(shape: "Shape") -> "NativeCall":
    """Returns the compiled function of a shape."""
    from kanawa_backends_cpu.kernels.attention.native_code import count_items, emit_item
    from kanawa_backends_cpu.native.calls import NativeCall

    return NativeCall(
        "attention", functools.partial(emit_item, shape), functools.partial(count_items, shape), operands=6, results=3
    )
