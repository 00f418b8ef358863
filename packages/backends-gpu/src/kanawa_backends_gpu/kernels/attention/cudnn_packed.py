"""attention.gpu.cudnn-packed: cuDNN's flash attention over packed rows, without a dense bias.

cuDNN takes the start and length of each document, at most a fixed number a row; they are computed from the segment ids
in the program. Rows that hold more documents, or ids that come back, go to attention.gpu.pallas, decided while running.

It ranks under attention.gpu.pallas: a compiler without a GPU never asks cuDNN whether it has such a kernel or what
workspace it needs, so nothing here is known to run. Measure it (`kanawa kernels --bench`) or choose it by name.
"""

import dataclasses
import inspect
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu.kernels.attention.cudnn import CudnnAttention, cudnn_version
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention
from kanawa_backends_gpu.kernels.attention.segment_runs import SegmentRuns

#: Documents of a row. cuDNN writes a log-sum-exp as long as the row for each of them.
_MOST_RUNS = 32
_MOST_ELEMENTS = 2**31
_HAS_SCORE_FUNCTION = "score_mod" in inspect.signature(cudnn._dot_product_attention_fwd_rule).parameters


class PackedCudnnAttention(Kernel):
    """What attention.gpu.cudnn takes, over rows of several documents; Hopper or newer."""

    name: ClassVar[str] = "attention.gpu.cudnn-packed"
    priority: ClassVar[int] = 4
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = CudnnAttention.compiled_calls
    whole_rows: ClassVar[CudnnAttention] = CudnnAttention()
    other: ClassVar[PallasAttention] = PallasAttention()

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        p = problem
        refused = first_refusal(
            (not p.mask.segments, "rows aren't packed; attention.gpu.cudnn takes whole ones"),
            (
                device is not None and device.family == "ampere",
                "cuDNN takes packed rows on Hopper and newer",
            ),
            (p.q_length != p.kv_length, f"{p.q_length} queries, {p.kv_length} keys: documents need as many"),
            (p.q_length < 2, "a single token holds one document"),
            (
                p.batch * p.q_length * p.num_heads * p.head_dim >= _MOST_ELEMENTS,
                f"q has {_MOST_ELEMENTS} numbers or more; offsets into it are 32-bit integers",
            ),
        )
        return refused if not refused else self.whole_rows.supports(_unpacked(p), device)

    def tunings(self, problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other numbers of documents a row may hold."""
        del device
        return tuple((("documents", most),) for most in (8, 64) if most < problem.q_length)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, D] in q's dtype and the log-sum-exp, fp32 [B, H, T]; zeros and -inf for padding."""
        runs, fits = self._runs(problem, operands)

        def packed(operands: Operands) -> tuple[jax.Array, jax.Array]:
            out, stats = forward_call(problem, operands, runs)
            return _of_tokens(out, runs), runs.to_rows(stats)

        out, lse = jax.lax.cond(fits, packed, lambda operands: self.other.forward(problem, operands), dict(operands))
        return out, lse

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of q, k and v from out and a log-sum-exp, maybe over more keys."""
        runs, fits = self._runs(problem, operands)
        saved = (dict(operands), out, residuals, cotangents.astype(out.dtype))

        def packed(saved: Any) -> dict[str, jax.Array]:
            operands, out, lse, dout = saved
            grads = backward_call(problem, operands, runs, runs.to_runs(lse), out, dout)
            return {name: _of_tokens(grad, runs) for name, grad in zip("qkv", grads, strict=True)}

        grads: dict[str, jax.Array] = jax.lax.cond(
            fits, packed, lambda saved: self.other.backward(problem, *saved), saved
        )
        return grads

    def _runs(self, problem: AttentionProblem, operands: Operands) -> tuple[SegmentRuns, jax.Array]:
        ids, kv_ids = (
            jnp.broadcast_to(operands[name], (problem.batch, problem.q_length)).astype(jnp.int32)
            for name in ("q_segment_ids", "kv_segment_ids")
        )
        # The call has one layout for queries and one for keys; both are this one.
        runs = SegmentRuns.of_ids(ids, max(2, self.setting("documents", _MOST_RUNS)))
        return runs, runs.fits & jnp.all(ids == kv_ids)


def forward_call(problem: AttentionProblem, operands: Operands, runs: SegmentRuns) -> tuple[jax.Array, jax.Array]:
    """Returns cuDNN's out [B, T, H, D] and log-sum-exp [B * M, H, T]; both hold anything where no document is."""
    cudnn_version()
    arrays = _arrays(problem, operands, runs)
    out, lse = cudnn._dot_product_attention_fwd_p_wrapper.bind(*arrays, is_training=True, **_static(problem))
    return out, lse


def backward_call(
    problem: AttentionProblem,
    operands: Operands,
    runs: SegmentRuns,
    stats: jax.Array,
    out: jax.Array,
    dout: jax.Array,
) -> tuple[jax.Array, ...]:
    """Returns cuDNN's cotangents of q, k and v; they hold anything where no document is."""
    arrays = _arrays(problem, operands, runs)
    return tuple(cudnn._dot_product_attention_bwd_p_wrapper.bind(*arrays, stats, out, dout, **_static(problem)))[:3]


def _arrays(problem: AttentionProblem, operands: Operands, runs: SegmentRuns) -> tuple[jax.Array, ...]:
    """Returns q, k, v, no bias, lengths and starts of queries and of keys, no page tables."""
    q, k, v = operands["q"], operands["k"], operands["v"]
    none = jnp.zeros(0, problem.dtype)
    return (q, k, v, none, runs.lengths, runs.lengths, runs.starts, runs.starts, none, none)


def _static(problem: AttentionProblem) -> dict[str, Any]:
    window = problem.mask.window
    static = {
        "scale": problem.scale,
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": cudnn.MaskType.CAUSAL if problem.mask.causal else cudnn.MaskType.NO_MASK,
        "layout": cudnn.AttentionLayout.BTNH.value,
        # A window within a document is one within its row: both count back from the query.
        "sliding_window_length": None if window is None or window[0] is None else window[0] + 1,
    }
    return static | ({"score_mod": None} if _HAS_SCORE_FUNCTION else {})


def _of_tokens(x: jax.Array, runs: SegmentRuns) -> jax.Array:
    """Returns [B, T, H, D] with zeros for padding, which cuDNN never writes."""
    real = runs.run < runs.lengths.size
    return jnp.where(real[:, :, None, None], x, jnp.zeros((), x.dtype))


def _unpacked(problem: AttentionProblem) -> AttentionProblem:
    return dataclasses.replace(problem, mask=problem.mask.without_segments)
