"""Kernels whose rows have the same bits in training, prefill and decoding, and agree with the reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.kernels import CAUSAL, MaskSpec, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.matmul import matmul
from kanawa.testing.compare import compare_with_reference
from kanawa_backends_cpu.kernels.attention.invariant import InvariantAttention
from kanawa_backends_cpu.kernels.matmul.available import why_no_native
from kanawa_kernel_tools.examples.attention import BASE

pytestmark = pytest.mark.skipif(bool(why_no_native()), reason=str(why_no_native()))

ROWS = ExecutionPlan(row_invariant=True)
SMALL = dataclasses.replace(
    BASE, q_length=24, kv_length=24, head_dim=32, v_head_dim=32, dtype="bfloat16", row_invariant=True
)
PINNED = dataclasses.replace(ROWS, kernels=KernelPolicy(pins=(("attention", "attention.cpu.invariant"),)))

CHANGES = {
    "causal": {},
    "grouped, soft cap": {"num_kv_heads": 1, "logit_cap": 2.0},
    "window": {"mask": sliding_window(7)},
    "packed segments": {"mask": CAUSAL & MaskSpec(segments=True)},
    "chunks, other value width": {"mask": MaskSpec(causal=True, chunk=8), "v_head_dim": 16},
    "decode over pages": {"mode": "decode", "q_length": 1, "page_size": 8, "has_kv_lengths": True, "kv_bits": True},
}


@pytest.mark.parametrize("change", CHANGES)
def test_agrees_with_the_reference(change):
    problem = dataclasses.replace(SMALL, **CHANGES[change])
    (agreement,) = compare_with_reference(InvariantAttention(), [problem])
    assert agreement.errors and agreement.ok, agreement.describe()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"row_invariant": False}, "needn't be invariant"),
        ({"dtype": "float32"}, "it takes bfloat16"),
        ({"head_dim": 24}, "multiples of 16"),
        ({"has_sinks": True}, "no sinks"),
    ],
)
def test_refuses_with_a_reason(change, reason):
    verdict = InvariantAttention().supports(dataclasses.replace(SMALL, **change), None)
    assert not verdict and reason in verdict.reason


def drawn(number, *shape):
    return jax.random.normal(jax.random.key(number), shape).astype(jnp.bfloat16)


def bits(x):
    return np.asarray(jax.lax.bitcast_convert_type(x, jnp.uint16))


@pytest.mark.parametrize("window", [None, 9])
def test_a_query_has_the_same_bits_in_training_prefill_and_decoding(window):
    length, page, heads, width = 40, 8, 4, 32
    mask = CAUSAL if window is None else sliding_window(window)
    q, k, v = (drawn(i, 1, length, n, width) for i, n in enumerate((heads, 2, 2)))
    pages = [jax.lax.bitcast_convert_type(x.reshape(-1, page, 2, width), jnp.uint16) for x in (k, v)]
    table = jnp.arange(length // page, dtype=jnp.int32)[None]
    with use_plan(PINNED):
        trained = bits(attention(q, k, v, mask=mask))
        for first, count in ((0, 24), (24, 16)):
            at = jnp.arange(first, first + count, dtype=jnp.int32)[None]
            lengths = jnp.array([first + count], jnp.int32)
            chunk = attention(
                q[:, first : first + count], *pages, mask=mask, page_table=table, kv_lengths=lengths, q_positions=at,
                mode="prefill",
            )  # fmt: skip
            np.testing.assert_array_equal(bits(chunk), trained[:, first : first + count])
        for place in (0, 7, 8, 39):
            lengths = jnp.array([place + 1], jnp.int32)
            one = attention(
                q[:, place : place + 1], *pages, mask=mask, page_table=table, kv_lengths=lengths, mode="decode"
            )
            np.testing.assert_array_equal(bits(one), trained[:, place : place + 1])


@pytest.mark.parametrize(("inner", "outputs"), [(64, 48), (600, 130), (2100, 70)])
def test_a_row_of_a_matmul_has_the_same_bits_however_many_rows_there_are(inner, outputs):
    x, weight = drawn(0, 96, inner), drawn(1, inner, outputs)
    with use_plan(ROWS):
        together = bits(matmul(x, weight))
        for rows in (1, 5, 32, 33):
            np.testing.assert_array_equal(bits(matmul(x[:rows], weight)), together[:rows])
