"""What cuDNN's attention takes and refuses; its numbers need a GPU, tests/aot compiles it."""

import dataclasses
import inspect

import jax
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa_backends_gpu.kernels.attention.cudnn import CudnnAttention

PLAIN = AttentionProblem(
    batch=2,
    q_length=1024,
    kv_length=1024,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    v_head_dim=128,
    dtype="bfloat16",
    mask=CAUSAL,
    scale=0.1,
)
SUPPORTED = {
    "causal": {},
    "full": {"mask": FULL, "kv_length": 77},
    "window": {"mask": sliding_window(100)},
    "narrow": {"head_dim": 40, "v_head_dim": 40, "dtype": "float16"},
}
REFUSALS = {
    "in pages": {"page_size": 16},
    "dense bias": {"bias_shape": (1, 8, 1024, 1024)},
    "sinks": {"has_sinks": True},
    "logit cap": {"logit_cap": 30.0},
    "mask has segments": {"mask": MaskSpec(causal=True, segments=True)},
    "mask has chunk, prefix": {"mask": MaskSpec(causal=True, prefix=True, chunk=8)},
    "needs a causal window": {"mask": MaskSpec(window=(8, 8))},
    "positions or lengths": {"has_kv_lengths": True},
    "dtype float32": {"dtype": "float32"},
    "widths (128, 64)": {"v_head_dim": 64},
    "head_dim 256": {"head_dim": 256, "v_head_dim": 256},
    "head_dim 36": {"head_dim": 36, "v_head_dim": 36},
    "512 queries, 1024 keys": {"q_length": 512},
}


@pytest.mark.parametrize("case", SUPPORTED)
def test_supported(case):
    assert CudnnAttention().supports(dataclasses.replace(PLAIN, **SUPPORTED[case]), None)


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = CudnnAttention().supports(dataclasses.replace(PLAIN, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


def test_the_rules_of_jax_are_the_ones_that_were_compiled():
    """A JAX that changes them fails here, not with a wrong gradient on a GPU."""
    forward = list(inspect.signature(cudnn._dot_product_attention_fwd_rule).parameters)
    backward = list(inspect.signature(cudnn._dot_product_attention_bwd_rule).parameters)
    statics = [
        *("scale", "seed", "dropout_rate", "variadic_args"),
        *("mask_type", "layout", "sliding_window_length"),
    ]
    extra = ["score_mod"] if "score_mod" in forward else []
    assert forward[:3] == ["query", "key", "value"]
    assert forward[10:] == [*(f"{name}_args" for name in extra), *statics, *extra, "cudnn_version", "return_residual"]
    # The flag before `return_residual` is read by neither version's rule, whatever it is called.
    flag = "cudnn_version" if extra else "is_training"
    assert backward == [*statics, *extra, flag, "return_residual", "res", "grad_output"]


def test_its_calls_fit_the_rules_of_the_jax_at_hand(monkeypatch):
    """Tracing needs no GPU once cuDNN's version and the chip's are told."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda *_: True)
    monkeypatch.setattr(cudnn, "check_is_flash_attention", lambda *_, **__: None)
    row = jax.ShapeDtypeStruct((2, 1024, 8, 128), "bfloat16")
    few = jax.ShapeDtypeStruct((2, 1024, 2, 128), "bfloat16")
    kernel = CudnnAttention()

    def both(q, k, v):
        operands = {"q": q, "k": k, "v": v}
        out, residuals = kernel.forward(PLAIN, operands)
        return residuals, kernel.backward(PLAIN, operands, out, residuals, out)

    residuals, cotangents = jax.eval_shape(both, row, few, few)
    assert residuals.shape == (2, 8, 1024)
    assert {name: each.shape for name, each in cotangents.items()} == {"q": row.shape, "k": few.shape, "v": few.shape}


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("case", SUPPORTED)
def test_against_the_reference(case):
    from kanawa.kernels.attention.reference import ReferenceAttention

    problem = dataclasses.replace(PLAIN, **SUPPORTED[case])
    heads = {"q": problem.num_heads, "k": problem.num_kv_heads, "v": problem.num_kv_heads}
    lengths = {"q": problem.q_length, "k": problem.kv_length, "v": problem.kv_length}
    operands = {
        name: jax.random.normal(jax.random.key(i), (2, lengths[name], heads[name], problem.head_dim), problem.dtype)
        for i, name in enumerate("qkv")
    }
    kernel, reference = CudnnAttention(), ReferenceAttention()
    out, lse = kernel.forward(problem, operands)
    wanted, wanted_lse = reference.forward(problem, operands)
    assert jax.numpy.allclose(out, wanted, atol=2e-2)
    assert jax.numpy.allclose(lse, wanted_lse, atol=2e-2)
    grads = kernel.backward(problem, operands, out, lse, out)
    expected = reference.backward(problem, operands, wanted, wanted_lse, wanted)
    for name, grad in grads.items():
        assert jax.numpy.allclose(grad, expected[name], atol=5e-2), name
