"""attention.tpu.splash: JAX's block-sparse flash attention for TPUs, forward and backward.

Blocks that the mask rules out are never loaded. Uses the kernel's own backward function, which
its module doesn't export: core keeps out and log-sum-exp itself, so that ring attention can call
backward for a part of the keys. The tests run it in Pallas's interpreter with the oldest and the
newest JAX allowed.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_tpu.kernels.attention.splash_masks import splash_mask

_LANES = 128
#: Bytes of a row of a block: wider heads, or fp32 ones, get smaller blocks.
_ROW_BYTES = 256
#: Keys of a block whose scores exist at a time: four fp32 arrays of them by the block's queries must fit on chip.
_MOST_COMPUTED = 640
#: What a narrow mask leaves of larger blocks is less than what it hides in them.
_NARROW = 512
_MASK_PARTS = frozenset({"causal", "window", "chunk", "segments"})
_MASK_VALUE = splash.DEFAULT_MASK_VALUE


class SplashAttention(Kernel):
    """Training and prefill over whole rows; causal, window, chunk, segments, GQA, cap, sinks."""

    name: ClassVar[str] = "attention.tpu.splash"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    #: Backward does the scores again: with three gradients in one call that is five matmuls, in two calls seven.
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (
        *((r"dkv_and_dq|fused_bwd", 5), (r"splash\w*_dkv", 4), (r"splash\w*_dq", 3), (r"splash\w*_fwd", 2)),
    )
    #: Queries or keys that one step of the grid holds on chip, at most. A step costs some 300 cycles beside its
    #: matmuls; larger blocks hold more scores that causality hides.
    largest_block: ClassVar[int] = 1024
    #: Pallas's interpreter instead of a TPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        mask = problem.mask
        extra = sorted(mask.uses - _MASK_PARTS)
        chunk_alone = mask.chunk is None or (mask.causal and mask.window is None)
        return first_refusal(
            (problem.paged, "keys lie in pages; splash takes whole rows"),
            (problem.has_bias, "dense bias; splash takes none"),
            (
                bool(extra),
                f"mask has {', '.join(extra)}; splash knows {', '.join(sorted(_MASK_PARTS))}",
            ),
            (not chunk_alone, f"mask {mask.describe()}: splash knows chunk only as chunk&causal"),
            (
                not problem.has_default_positions,
                "positions or lengths are operands; splash's are fixed",
            ),
            (
                problem.dtype not in ("bfloat16", "float32"),
                f"dtype {problem.dtype}; needs bf16 or fp32",
            ),
            (problem.q_length % _LANES != 0, _not_whole("q_length", problem.q_length)),
            (problem.kv_length % _LANES != 0, _not_whole("kv_length", problem.kv_length)),
            (
                problem.may_mask_whole_rows,
                "some queries may see no key; splash would divide by zero",
            ),
        )

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, Dv] in q's dtype and the log-sum-exp, fp32 [B, H, T]."""
        call = self._kernel(problem, save_residuals=True)
        q, k, v = _head_major(problem, operands)
        rows = (0, 0, 0, 0 if problem.has_segments else None, None)
        out, (lse,) = jax.vmap(call, in_axes=rows)(q, k, v, _segments(operands), _sinks(operands))
        return out.swapaxes(1, 2), lse

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of q, k, v, sinks from out and a log-sum-exp, maybe over more keys."""
        call = self._kernel(problem, save_residuals=False)

        def one_row(
            q: jax.Array,
            k: jax.Array,
            v: jax.Array,
            ids: Any,
            o: jax.Array,
            lse: jax.Array,
            do: jax.Array,
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            saved = (q, k, v, ids, None, o, lse, call.dq_mask_info, call.dkv_mask_info)
            cotangents_of_inputs = splash._splash_attention_bwd(
                residual_checkpoint_name=None,
                save_residuals=False,
                mask_value=_MASK_VALUE,
                is_mqa=False,
                block_sizes=call.kwargs["block_sizes"],
                mask_function=call.kwargs["mask_function"],
                attn_logits_soft_cap=problem.logit_cap,
                interpret=self.interpret,
                res=saved,
                do=do,
            )
            return cotangents_of_inputs[3], cotangents_of_inputs[4], cotangents_of_inputs[5]

        q, k, v = _head_major(problem, operands)
        rows = (0, 0, 0, 0 if problem.has_segments else None, 0, 0, 0)
        dout = cotangents.swapaxes(1, 2)
        dq, dk, dv = jax.vmap(one_row, in_axes=rows)(q, k, v, _segments(operands), out.swapaxes(1, 2), residuals, dout)
        grads = {
            "q": _scaled(dq, problem.scale).swapaxes(1, 2),
            "k": dk.swapaxes(1, 2),
            "v": dv.swapaxes(1, 2),
        }
        if problem.has_sinks:
            delta = row_delta(out, cotangents)
            grads["sinks"] = sinks_gradient(operands["sinks"], residuals, delta)
        return grads

    def _kernel(self, problem: AttentionProblem, save_residuals: bool) -> Any:
        one = splash_mask(problem.mask, (problem.q_length, problem.kv_length))
        # All heads share this mask: Splash keeps the blocks of one, but remembers them by the heads that it is given.
        mask = masks.MultiHeadMask([one])
        return splash.make_splash_mha(
            mask,
            block_sizes=_blocks(problem, self.largest_block),
            head_shards=1,
            q_seq_shards=1,
            save_residuals=save_residuals,
            attn_logits_soft_cap=problem.logit_cap,
            mask_value=_MASK_VALUE,
            interpret=self.interpret,
        )


def _blocks(problem: AttentionProblem, largest: int) -> splash.BlockSizes:
    """Returns sizes for both directions."""
    mask = problem.mask
    width = max(problem.head_dim, problem.v_head_dim) * jnp.dtype(problem.dtype).itemsize
    largest = max(_LANES, largest * _ROW_BYTES // max(_ROW_BYTES, width) // _LANES * _LANES)
    if mask.window is not None or mask.chunk is not None:
        largest = min(largest, _NARROW)
    q, kv = _block(problem.q_length, largest), _block(problem.kv_length, largest)
    computed = _block(kv, min(kv, _MOST_COMPUTED))
    # Splash's fused backward, of five matmuls, makes a part of the queries' gradient for each block of keys, in q's
    # dtype. Their sum takes as long as what it saves: 4.2e6 cycles a layer of a 7B step, by the compiler's estimate.
    return splash.BlockSizes(
        block_q=q,
        block_kv=kv,
        block_kv_compute=computed,
        block_q_dkv=q,
        block_kv_dkv=kv,
        block_kv_dkv_compute=computed,
        block_q_dq=q,
        # This kernel computes all keys of a block at a time.
        block_kv_dq=computed,
    )


def _block(length: int, largest: int) -> int:
    """Returns the largest multiple of 128 up to `largest` that divides `length`."""
    sizes = range(largest // _LANES * _LANES, 0, -_LANES)
    return next(size for size in sizes if length % size == 0)


def _head_major(problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, ...]:
    """Returns q (scaled: splash has no scale of its own), k and v as [B, H, T, D]."""
    q = _scaled(operands["q"], problem.scale)
    return tuple(x.swapaxes(1, 2) for x in (q, operands["k"], operands["v"]))


def _scaled(x: jax.Array, scale: float) -> jax.Array:
    return (x.astype(jnp.float32) * scale).astype(x.dtype)


def _segments(operands: Operands) -> splash.SegmentIds | None:
    if "q_segment_ids" not in operands:
        return None
    return splash.SegmentIds(operands["q_segment_ids"], operands["kv_segment_ids"])


def _sinks(operands: Operands) -> jax.Array | None:
    return operands["sinks"].astype(jnp.float32) if "sinks" in operands else None


def _not_whole(name: str, length: int) -> str:
    return f"{name} {length} isn't a multiple of {_LANES}"
