"""Row-invariant kernels: right, and every row has the same bits however it is computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import CAUSAL, MaskSpec
from kanawa.kernels.matmul import matmul
from kanawa.kernels.matmul.problem import MatmulProblem
from kanawa_backends_cpu.kernels.attention.invariant import InvariantAttention
from kanawa_backends_cpu.kernels.matmul import available
from kanawa_backends_cpu.kernels.matmul.native import NativeMatmul

pytestmark = pytest.mark.skipif(available.why_no_native() is not None, reason="no native functions here")
ALIKE = ExecutionPlan(row_invariant=True)
ROWS, LENGTH, HEADS, PAGE = 3, 70, 4, 16


def operands(width, v_width, kv_heads, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = ((HEADS, width), (kv_heads, width), (kv_heads, v_width))
    return [
        2 * jax.random.normal(key, (ROWS, LENGTH, *shape), jnp.bfloat16)
        for key, shape in zip(keys, shapes, strict=True)
    ]


def in_pages(x, order):
    """Returns rows [B, S, K, D] as pages of bits, in a shuffled order; what no row owns is NaN."""
    missing = -x.shape[1] % PAGE
    pages = jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0)), constant_values=jnp.nan).reshape(-1, PAGE, *x.shape[2:])
    return jax.lax.bitcast_convert_type(jnp.zeros_like(pages).at[order].set(pages), jnp.uint16)


@pytest.mark.parametrize(
    ("width", "v_width", "kv_heads", "mask", "cap"),
    [
        (32, 16, 2, CAUSAL, None),
        (48, 80, 4, CAUSAL & MaskSpec(window=(20, 0)), 5.0),
        (16, 16, 1, CAUSAL & MaskSpec(chunk=24), None),
    ],
)
def test_a_query_has_the_same_bits_in_training_prefill_and_decoding(width, v_width, kv_heads, mask, cap):
    q, k, v = operands(width, v_width, kv_heads)
    lengths = jnp.asarray([LENGTH, LENGTH - 9, 40])
    segments = (jnp.arange(LENGTH)[None] < lengths[:, None]).astype(jnp.int32)
    real = np.asarray(segments) > 0

    def train(q, k, v):
        return attention(q, k, v, mask=mask, q_segment_ids=segments, logit_cap=cap)

    order = np.random.default_rng(0).permutation(ROWS * -(-LENGTH // PAGE))
    table = jnp.asarray(order.reshape(ROWS, -1))
    pages = in_pages(k, order), in_pages(v, order)
    with use_plan(ALIKE):
        whole = np.asarray(jax.jit(train)(q, k, v), np.float32)

        def serve(q, length, mode):
            ends = jnp.full((ROWS,), length, jnp.int32)
            return attention(q, *pages, mask=mask, page_table=table, kv_lengths=ends, logit_cap=cap, mode=mode)

        prefill, decode = (jax.jit(serve, static_argnums=2) for _ in range(2))
        chunk = np.asarray(prefill(q[:, 16:48], 48, "prefill"), np.float32)
        np.testing.assert_array_equal(chunk[real[:, 16:48]], whole[:, 16:48][real[:, 16:48]])
        for at in (0, 1, 15, 16, 39, 60, LENGTH - 1):
            one = np.asarray(decode(q[:, at : at + 1], at + 1, "decode"), np.float32)[:, 0]
            np.testing.assert_array_equal(one[real[:, at]], whole[:, at][real[:, at]], err_msg=str(at))
    wanted = np.asarray(train(*(x.astype(jnp.float32) for x in (q, k, v))))
    np.testing.assert_allclose(whole[real], wanted[real], rtol=2e-2, atol=2e-2)


def test_gradients_are_those_of_attention():
    q, k, v = operands(32, 32, 2)

    def loss(q, k, v):
        return jnp.sum(attention(q, k, v).astype(jnp.float32) ** 2)

    gradients = jax.grad(loss, (0, 1, 2))
    with use_plan(ALIKE):
        ours = gradients(q, k, v)
    for mine, wanted in zip(ours, gradients(*(x.astype(jnp.float32) for x in (q, k, v))), strict=True):
        scale = float(jnp.max(jnp.abs(wanted)))
        np.testing.assert_allclose(np.asarray(mine, np.float32), np.asarray(wanted), atol=2e-2 * scale)


@pytest.mark.parametrize(("inner", "outputs"), [(32, 24), (130, 70), (700, 33)])
def test_a_row_of_a_matmul_has_the_same_bits_among_any_number_of_rows_and_in_either_layout(inner, outputs):
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((300, inner), (inner, outputs)))
    with use_plan(ALIKE):
        whole = np.asarray(jax.jit(matmul)(x, weight), np.float32)
        for purpose, count in (("train", 36), ("prefill", 64), ("decode", 32), ("decode", 1)):
            with use_plan(dataclasses.replace(ALIKE, purpose=purpose)):
                few = jax.jit(lambda x, w: matmul(x, w, outputs_first=True))(x[7 : 7 + count], weight.T)
            np.testing.assert_array_equal(np.asarray(few, np.float32), whole[7 : 7 + count])


def test_who_asks_for_no_invariance_gets_the_fastest_kernels_and_refusals_say_why():
    problem = AttentionProblem(
        batch=1, q_length=1, kv_length=64, num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype="bfloat16",
        mask=CAUSAL, scale=1.0,
    )  # fmt: skip
    kernel = InvariantAttention()
    assert kernel.supports(problem, None).reason == "rows needn't be invariant; others are faster"
    prefill = dataclasses.replace(problem, q_length=32, page_size=16, kv_bits=True, has_kv_lengths=True, mode="prefill")
    assert kernel.supports(prefill, None)
    alike = dataclasses.replace(problem, row_invariant=True)
    assert kernel.supports(alike, None)
    assert alike.describe() == f"{problem.describe()} row-invariant"
    for change, words in (
        ({"dtype": "float32"}, "float32; it takes bfloat16"),
        ({"has_sinks": True}, "it takes no sinks"),
        ({"head_dim": 20}, "multiples of 16"),
        ({"head_dim": 512}, "up to 256"),
        ({"num_heads": 64}, "32 query heads a key head"),
        ({"mask": MaskSpec(prefix=True)}, "mask of prefix"),
        ({"page_size": 16}, "it takes pages of bits"),
    ):
        assert words in kernel.supports(dataclasses.replace(alike, **change), None).reason
    few = MatmulProblem(
        rows=1, inner=8, outputs=8, x_dtype="bfloat16", weight_dtype="bfloat16", sum_dtype="bfloat16", dtype="bfloat16",
        purpose="decode",
    )  # fmt: skip
    assert not NativeMatmul().supports(few, None)
    alike = dataclasses.replace(few, row_invariant=True)
    assert NativeMatmul().supports(alike, None)
    # Nothing else has to have the bits of a gradient.
    assert not alike.x_gradient().row_invariant
