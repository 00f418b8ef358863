"""attention.gpu.cudnn: cuDNN's flash attention, forward and backward.

Uses the two rules of JAX's own custom_vjp rather than `jax.nn.dot_product_attention`: that one
rounds the log-sum-exp to bf16, and core keeps it itself, so that ring attention can call backward
for a part of the keys. jax 0.12 gave the rules a function of the scores, which stays empty here;
a test pins the signatures of the JAX at hand.
"""

import inspect
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from kanawa.errors import KernelError
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.platform import outlined
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

_DTYPES = ("bfloat16", "float16")
# Hopper can do 256, but JAX asks the process's own device, which may not be the target.
_LARGEST_HEAD = 128
_MASK_PARTS = frozenset({"causal", "window"})
#: Of cuDNN 9: one that has all that is asked of it here.
_ANY_VERSION = 91_000
_LAYOUT = cudnn.AttentionLayout.BTNH.value
HAS_SCORE_FUNCTION = "score_mod" in inspect.signature(cudnn._dot_product_attention_fwd_rule).parameters


class CudnnAttention(Kernel):
    """Training and prefill over whole rows without packing: full, causal, causal window; GQA."""

    name: ClassVar[str] = "attention.gpu.cudnn"
    priority: ClassVar[int] = 10
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    #: Backward does the scores again beside its four gradients.
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (
        (r"fmha\w*Backward|attention_bwd", 5),
        (r"fmha|attention_fwd", 2),
    )

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        mask = problem.mask
        extra = sorted(mask.uses - _MASK_PARTS)
        uneven = problem.q_length != problem.kv_length and not mask.is_full
        widths = (problem.head_dim, problem.v_head_dim)
        return first_refusal(
            (device is not None and device.lowered_as == "rocm", "cuDNN is for NVIDIA's GPUs"),
            (problem.paged, "keys lie in pages; cuDNN's are rows here"),
            (problem.has_bias, "dense bias: its gradient needs shapes that aren't checked here"),
            (problem.has_sinks, "attention sinks; cuDNN has none"),
            (problem.logit_cap is not None, "logit cap; cuDNN has none"),
            (bool(extra), f"mask has {', '.join(extra)}; cuDNN takes causal and a causal window"),
            (
                mask.window is not None and not mask.causal,
                f"{mask.describe()}: needs a causal window",
            ),
            (
                not problem.has_default_positions,
                "positions or lengths are operands; cuDNN's are fixed",
            ),
            (problem.dtype not in _DTYPES, f"dtype {problem.dtype}; needs {' or '.join(_DTYPES)}"),
            (len(set(widths)) > 1, f"head widths {widths} of keys and values differ"),
            (
                problem.head_dim > _LARGEST_HEAD or problem.head_dim % 8 != 0,
                f"head_dim {problem.head_dim}; needs a multiple of 8 up to {_LARGEST_HEAD}",
            ),
            (uneven, f"{problem.q_length} queries, {problem.kv_length} keys: a mask needs as many"),
        )

    def apply(self, problem: AttentionProblem, operands: Operands) -> jax.Array:
        """Returns out [B, T, H, D] in q's dtype, without the log-sum-exp; KernelError where cuDNN isn't found."""
        if outlined():
            return self.forward(problem, operands)[0]
        cudnn_version()
        out: jax.Array = cudnn.dot_product_attention(
            operands["q"],
            operands["k"],
            operands["v"],
            scale=problem.scale,
            mask_type=_mask_type(problem),
            sliding_window_length=_window(problem),
        )
        return out

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, D] in q's dtype and the log-sum-exp, fp32 [B, H, T]."""
        rule: Any = cudnn._dot_product_attention_fwd_rule
        out, lse = rule(*_arrays(operands), *static_arguments(problem), cudnn_version(), True)[0]
        return out, lse

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, Any]:
        """Returns cotangents of q, k and v from out and a log-sum-exp, maybe over more keys."""
        saved = (*_arrays(operands), residuals, out)
        rule: Any = cudnn._dot_product_attention_bwd_rule
        cotangents_of_inputs = rule(*static_arguments(problem), True, False, saved, cotangents.astype(out.dtype))
        return dict(zip("qkv", cotangents_of_inputs, strict=False))


def _arrays(operands: Operands) -> tuple[Any, ...]:
    """Returns q, k, v, and empty arrays for bias, lengths, offsets and page tables; none for a function of scores."""
    q, k, v = operands["q"], operands["k"], operands["v"]
    return (q, k, v, *[jnp.zeros(0, q.dtype)] * 7, *[()] * HAS_SCORE_FUNCTION)


def static_arguments(problem: AttentionProblem) -> tuple[Any, ...]:
    """Returns scale, seed, dropout, (bias, its gradient), mask, layout, window and no function of the scores."""
    none = [None] * HAS_SCORE_FUNCTION
    return (problem.scale, 0, 0.0, (False, False), _mask_type(problem), _LAYOUT, _window(problem), *none)


def _mask_type(problem: AttentionProblem) -> cudnn.MaskType:
    return cudnn.MaskType.CAUSAL if problem.mask.causal else cudnn.MaskType.NO_MASK


def _window(problem: AttentionProblem) -> int | None:
    """Returns how many keys a query sees, its own included."""
    window = problem.mask.window
    return None if window is None or window[0] is None else window[0] + 1


def cudnn_version() -> int:
    """Returns cuDNN's version; raises KernelError where JAX finds none: even tracing asks for it."""
    try:
        return int(cudnn.check_cudnn_version())
    except RuntimeError as error:
        # The version decides how the call is lowered, not what shapes it has.
        if outlined():
            return _ANY_VERSION
        message = (
            f"attention.gpu.cudnn was chosen, but JAX can't trace it here: {error} "
            f'pip install "kanawa-backends-gpu[compile]" (or [cuda] on a GPU), or choose another kernel with '
            f'--set execution.kernels={{"attention":"attention.any.reference"}}'
        )
        raise KernelError(message) from error
