"""attention.cpu.flash: training's attention in float32 by native functions, which skip tiles that no query sees.

Of packed rows, most pairs of a query and a key are of different segments: a tile of 64 by 64 whose segments don't meet
costs nothing. FlashAttention-2 (Dao, arXiv 2307.08691).
"""

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.gradient import row_delta
from kanawa.kernels.attention.paged import with_existing_values
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal, refuse

from kanawa_backends_cpu.kernels.attention.blockwise import BlockwiseAttention
from kanawa_backends_cpu.kernels.attention.invariant import seen_keys
from kanawa_backends_cpu.kernels.matmul.available import why_no_native
from kanawa_backends_cpu.processor import cores, processor

if TYPE_CHECKING:
    from kanawa_backends_cpu.kernels.attention.flash_code import Shape
    from kanawa_backends_cpu.native.calls import NativeCall

#: Masks under which each query sees one contiguous run of keys; segments are compared key by key.
_MASKS = frozenset({"causal", "window", "chunk", "segments"})
_WIDEST = 256
#: Query heads of a key head: as many as a tile has lines.
_LARGEST_GROUP = 64


class FlashAttention(Kernel):
    """Exact attention over dense keys, and its gradients, each as one native function; needs llvmlite."""

    name: ClassVar[str] = "attention.cpu.flash"
    priority: ClassVar[int] = 15
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"attention_gradient", 5), (r"attention_forward", 2))

    #: With fewer keys or queries, one matmul computes all scores.
    shortest: ClassVar[int] = 64

    def supports(self, problem: AttentionProblem, device: Any) -> Verdict:
        """Returns support for training in float32 over at least as many rows times key heads as there are cores."""
        del device
        p, widths = problem, (problem.head_dim, problem.v_head_dim)
        masks = ", ".join(sorted(p.mask.uses - _MASKS))
        unfit = why_no_native()
        if unfit:
            return refuse(unfit)
        lanes, _ = _registers()
        shortest = min(p.q_length, p.kv_length)
        items, threads = p.batch * p.num_kv_heads, cores()
        return first_refusal(
            (p.mode != "train", f"it takes training, not {p.mode}"),
            (p.row_invariant, "the bits of its rows depend on their place"),
            (p.dtype != "float32", f"{p.dtype}; it takes float32"),
            (p.paged, "keys are paged; it takes dense keys"),
            (p.has_bias, "it takes no dense bias"),
            (p.has_sinks, "it takes no sinks"),
            (p.logit_cap is not None, "it caps no scores"),
            (p.has_kv_positions, "keys have positions of their own; it takes them in order"),
            (bool(masks), f"mask of {masks}; it takes causal, window, chunk and segments"),
            (any(width % lanes for width in widths), f"heads of {widths}; it takes multiples of {lanes}"),
            (max(widths) > _WIDEST, f"heads of {widths}; it takes up to {_WIDEST}"),
            (p.group_size > _LARGEST_GROUP, f"{p.group_size} query heads a key head; it takes up to {_LARGEST_GROUP}"),
            (shortest < self.shortest, f"{shortest} queries or keys are under {self.shortest}: others are faster"),
            (items < threads, f"{items} rows times key heads are fewer than {threads} cores"),
        )

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out, log-sum-exp fp32 [B, H, T])."""
        return _forward(problem, with_existing_values(operands))

    def backward(
        self, problem: AttentionProblem, operands: Operands, out: jax.Array, residuals: jax.Array, cotangents: jax.Array
    ) -> dict[str, jax.Array]:  # fmt: skip
        """Returns fp32 cotangents, recomputing each tile's scores from the log-sum-exp."""
        return _backward(problem, with_existing_values(operands), out, residuals, cotangents)


# JAX can't differentiate a native call: where a derivative is taken of these, blockwise attention takes their place.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(problem: AttentionProblem, operands: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    p = problem
    sums = jax.ShapeDtypeStruct((p.batch, p.q_length, p.num_heads), jnp.float32)
    results = [jax.ShapeDtypeStruct((*sums.shape, p.v_head_dim), jnp.float32), sums, sums]
    out, top, total = native_call(call_shape(p), False)(results, *_inputs(p, operands))
    lse = jnp.where(total > 0, top + jnp.log(total), -jnp.inf) if p.may_mask_whole_rows else top + jnp.log(total)
    return out, jnp.swapaxes(lse, 1, 2)


@_forward.defjvp
def _(problem: AttentionProblem, primals: Any, tangents: Any) -> Any:
    return jax.jvp(functools.partial(BlockwiseAttention().forward, problem), primals, tangents)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _backward(
    problem: AttentionProblem, operands: dict[str, jax.Array], out: jax.Array, lse: jax.Array, dout: jax.Array
) -> dict[str, jax.Array]:
    results = [jax.ShapeDtypeStruct(operands[name].shape, jnp.float32) for name in "qkv"]
    inputs = (*_inputs(problem, operands), dout.astype(jnp.float32), lse, row_delta(out, dout))
    return dict(zip("qkv", native_call(call_shape(problem), True)(results, *inputs), strict=True))


@_backward.defjvp
def _(problem: AttentionProblem, primals: Any, tangents: Any) -> Any:
    return jax.jvp(functools.partial(BlockwiseAttention().backward, problem), primals, tangents)


def _inputs(problem: AttentionProblem, operands: Operands) -> list[jax.Array]:
    segments = [jnp.zeros((1, 1), jnp.int32)] * 2
    if problem.has_segments:
        segments = [operands[name].astype(jnp.int32) for name in ("q_segment_ids", "kv_segment_ids")]
    return [*(operands[name] for name in "qkv"), *seen_keys(problem, operands), *segments]


def _registers() -> tuple[int, int]:
    return processor().vector_registers or (4, 4)


def call_shape(problem: AttentionProblem) -> "Shape":
    """Returns the shape of the functions that compute a problem."""
    from kanawa_backends_cpu.kernels.attention.flash_code import Shape

    lanes, vectors = _registers()
    return Shape(
        heads=problem.num_kv_heads,
        group=problem.group_size,
        width=problem.head_dim,
        v_width=problem.v_head_dim,
        scale=problem.scale,
        segments=problem.has_segments,
        lanes=lanes,
        vectors=vectors,
    )


@functools.cache
def native_call(shape: "Shape", backward: bool) -> "NativeCall":
    """Returns the compiled function of a shape."""
    from kanawa_backends_cpu.kernels.attention import flash_code, flash_gradient_code
    from kanawa_backends_cpu.native.calls import NativeCall

    name, code = ("gradient", flash_gradient_code) if backward else ("forward", flash_code)
    return NativeCall(
        f"attention_{name}", functools.partial(code.emit_item, shape), functools.partial(code.count_items, shape),
        operands=10 if backward else 7, results=3,
    )  # fmt: skip
