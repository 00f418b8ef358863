"""Native flash attention against the reference, what it skips, second derivatives, and its refusals."""

import dataclasses
import os
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_cpu.kernels.attention import flash
from kanawa_backends_cpu.kernels.attention.flash import FlashAttention
from kanawa_backends_cpu.kernels.matmul import available
from kanawa_backends_cpu.processor import Processor

pytestmark = pytest.mark.skipif(available.why_no_native() is not None, reason="no native functions here")
PACKED = CAUSAL & MaskSpec(segments=True)
BASE = AttentionProblem(
    batch=2, q_length=150, kv_length=150, num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype="float32",
    mask=PACKED, scale=0.2,
)  # fmt: skip


class TestFlash(KernelConformance):
    """Lengths that tiles don't divide, groups, masks and segments, on generated problems."""

    narrow: ClassVar = {
        "mode": ("train",),
        "dtype": ("float32",),
        "q_length": (128, 131, 64),
        "kv_length": (None, 200),
        "heads": ((4, 2), (6, 3), (8, 1)),
        "head_dims": ((64, 64), (192, 128), (80, 96)),
        "prefix": (False,),
        "predicates": ((),),
        "any_of": ((),),
        "logit_cap": (None,),
        "sinks": (False,),
        "alibi": (False,),
        "dropout_rate": (0.0,),
        "bias": (None,),
        "positions": (None, "q"),
        "page_size": (None,),
        "ragged_sequences": (None,),
    }
    generated = 3

    def kernel(self):
        return FlashAttention()

    def problems(self):
        return (BASE, dataclasses.replace(BASE, mask=FULL, kv_length=70, num_kv_heads=4, v_head_dim=16))


@pytest.mark.parametrize("features", [{"avx2", "fma"}, {"asimd"}])
def test_registers_of_other_processors(monkeypatch, features):
    monkeypatch.setattr(flash, "processor", lambda: Processor("another", frozenset(features)))
    problem = dataclasses.replace(BASE, mask=sliding_window(40) & MaskSpec(segments=True), head_dim=24, v_head_dim=40)
    (agreement,) = compare_with_reference(FlashAttention(), [problem])
    assert agreement.errors and agreement.ok, agreement.describe()


def test_tiles_of_other_segments_are_not_read():
    """NaN among them would reach the sums: zero times NaN is NaN."""
    q, k, v, dout = (jax.random.normal(jax.random.key(i), (1, 256, 2, 16)) for i in range(4))
    segments = jnp.repeat(jnp.arange(1, 5, dtype=jnp.int32), 64)[None]
    problem = dataclasses.replace(
        BASE, batch=1, q_length=256, kv_length=256, num_heads=2, head_dim=16, v_head_dim=16, mask=PACKED
    )
    ids = {"q_segment_ids": segments, "kv_segment_ids": segments}
    kernel, lost = FlashAttention(), slice(64, 128)
    broken = {"q": q, "k": k.at[:, lost].set(jnp.nan), "v": v.at[:, lost].set(jnp.nan), **ids}
    out, lse = kernel.forward(problem, broken)
    grads = kernel.backward(problem, broken, out, lse, dout)
    others = np.r_[0:64, 128:256]
    assert np.isnan(np.asarray(out)[:, lost]).all()
    right = attention(q, k, v, mask=PACKED, scale=0.2, **ids)
    np.testing.assert_allclose(np.asarray(out)[:, others], np.asarray(right)[:, others], rtol=1e-5, atol=1e-5)
    assert all(np.isfinite(np.asarray(grad)[:, others]).all() for grad in grads.values())


def test_it_can_be_differentiated_twice_and_mapped():
    q, k, v = (jax.random.normal(jax.random.key(i), (os.cpu_count() or 1, 64, 1, 16)) for i in range(3))

    def twice(attend):
        slope = jax.grad(lambda q: jnp.sum(attend(q, k, v) ** 2))
        return jax.jit(jax.grad(lambda q: jnp.sum(slope(q) ** 2)))(q)

    right = twice(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    np.testing.assert_allclose(twice(attention), right, atol=2e-5 * float(jnp.max(jnp.abs(right))))
    pairs = [jnp.stack([x, 2 * x]) for x in (q, k, v)]
    mapped = jax.jit(jax.vmap(attention))
    assert "kanawa_attention_forward" in mapped.lower(*pairs).as_text()
    np.testing.assert_allclose(mapped(*pairs)[1], attention(2 * q, 2 * k, 2 * v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "prefill"}, "it takes training, not prefill"),
        ({"row_invariant": True}, "the bits of its rows depend on their place"),
        ({"dtype": "bfloat16"}, "bfloat16; it takes float32"),
        ({"page_size": 16}, "it takes dense keys"),
        ({"bias_shape": (1, 1, 1, 1)}, "no dense bias"),
        ({"has_sinks": True}, "no sinks"),
        ({"logit_cap": 5.0}, "it caps no scores"),
        ({"has_kv_positions": True}, "it takes them in order"),
        ({"mask": MaskSpec(prefix=True)}, "mask of prefix"),
        ({"v_head_dim": 30}, "heads of (32, 30); it takes multiples of"),
        ({"head_dim": 512}, "it takes up to 256"),
        ({"num_heads": 130}, "65 query heads a key head; it takes up to 64"),
        ({"q_length": 63}, "63 queries or keys are under 64"),
        ({"batch": 1, "num_kv_heads": 1}, "1 rows times key heads are fewer than 2 cores"),
    ],
)
def test_refuses_with_a_reason(monkeypatch, change, words):
    monkeypatch.setattr(flash, "cores", lambda: 2)
    assert FlashAttention().supports(BASE, None)
    assert words in FlashAttention().supports(dataclasses.replace(BASE, **change), None).reason
