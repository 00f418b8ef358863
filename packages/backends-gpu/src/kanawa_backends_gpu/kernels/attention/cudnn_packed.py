"""attention.gpu.cudnn-packed: cuDNN's flash attention over packed rows, without a dense bias.

cuDNN takes the start and length of each document, at most a fixed number a row; they are computed from the segment ids
in the program. Rows that hold more documents, or ids that come back, go to attention.gpu.pallas, decided while running.

It ranks under attention.gpu.pallas: a compiler without a GPU never asks cuDNN whether it has such a kernel or what
workspace it needs, so nothing here is known to run. Measure it (`kanawa kernels --bench`) or choose it by name.

Legend: B rows, T tokens, M documents a row at most, H heads.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu.kernels.attention.cudnn import (
    HAS_SCORE_FUNCTION,
    CudnnAttention,
    cudnn_version,
    static_arguments,
)
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention


class SegmentRuns(NamedTuple):
    """The runs of equal ids in each row; id 0 is padding and belongs to none.

    Attributes:
        lengths: int32 [B, M], -1 where a row has fewer runs.
        starts: int32 [B, M + 1], -1 likewise, the last one always.
        run: int32 [B, T], which run a token belongs to, counted over all rows; B * M for padding.
        place: int32 [B, T], a token's place in its run.
        fits: bool, whether the runs say all that the ids say: no row has more than M, and no id comes back after
            another one.
    """

    lengths: jax.Array
    starts: jax.Array
    run: jax.Array
    place: jax.Array
    fits: jax.Array

    @classmethod
    def of_ids(cls, ids: jax.Array, most: int) -> "SegmentRuns":
        """Returns the runs of ids [B, T], `most` a row."""
        rows, length = ids.shape
        index = jnp.arange(length, dtype=jnp.int32)[None]
        real = ids != 0
        begins = real & (ids != jnp.pad(ids[:, :-1], ((0, 0), (1, 0))))
        local = jnp.cumsum(begins.astype(jnp.int32), axis=1) - 1
        count = jnp.sum(begins, axis=1, dtype=jnp.int32)
        # An id that is no larger than one before it may be that one's: its tokens would belong together.
        highest = jax.lax.cummax(jnp.where(real, ids, 0), axis=1)
        returns = begins & (ids <= jnp.pad(highest[:, :-1], ((0, 0), (1, 0))))
        number = jnp.arange(most, dtype=jnp.int32)[None]
        mine = local[:, None, :] == number[:, :, None]
        used = number < count[:, None]
        lengths = jnp.sum(mine & real[:, None, :], axis=2, dtype=jnp.int32)
        starts = jnp.sum(jnp.where(mine & begins[:, None, :], index[:, None, :], 0), axis=2, dtype=jnp.int32)
        start_of_token = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
        before = jnp.cumsum(count) - count
        return cls(
            lengths=jnp.where(used, lengths, -1),
            starts=jnp.pad(jnp.where(used, starts, -1), ((0, 0), (0, 1)), constant_values=-1),
            run=jnp.where(real, before[:, None] + local, rows * most),
            place=index - start_of_token,
            fits=jnp.all(count <= most) & ~jnp.any(returns),
        )

    def to_rows(self, per_run: jax.Array) -> jax.Array:
        """Returns numbers of runs [B * M, H, T] as numbers of rows [B, H, T], -inf for padding."""
        runs = per_run.shape[0]
        heads = jnp.arange(per_run.shape[1])[None, :, None]
        numbers = per_run[jnp.minimum(self.run, runs - 1)[:, None], heads, self.place[:, None]]
        return jnp.where((self.run < runs)[:, None], numbers, -jnp.inf)

    def to_runs(self, per_row: jax.Array) -> jax.Array:
        """Returns numbers of rows [B, H, T] as numbers of runs [B * M, H, T], 0 past a run's end."""
        rows, heads, length = per_row.shape
        runs = jnp.zeros((rows * self.lengths.shape[1], length, heads), per_row.dtype)
        # Padding's run lies past the last one and is dropped.
        filled = runs.at[self.run, self.place].set(per_row.swapaxes(1, 2), mode="drop")
        return filled.swapaxes(1, 2)


#: Documents of a row. cuDNN writes a log-sum-exp as long as the row for each of them.
_MOST_RUNS = 32
_MOST_ELEMENTS = 2**31


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
    # A window within a document is one within its row: both count back from the query.
    names = ("scale", "seed", "dropout_rate", "variadic_args", "mask_type", "layout", "sliding_window_length")
    return dict(zip((*names, *["score_mod"] * HAS_SCORE_FUNCTION), static_arguments(problem), strict=True))


def _of_tokens(x: jax.Array, runs: SegmentRuns) -> jax.Array:
    """Returns [B, T, H, D] with zeros for padding, which cuDNN never writes."""
    real = runs.run < runs.lengths.size
    return jnp.where(real[:, :, None, None], x, jnp.zeros((), x.dtype))


def _unpacked(problem: AttentionProblem) -> AttentionProblem:
    return dataclasses.replace(problem, mask=problem.mask.without_segments)
