"""The reference against a NumPy oracle, its gradients, its cost against hand-written JAX."""

import dataclasses
import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_rest import broken_rest
from jax.test_util import check_grads
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.gradient import sinks_gradient
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.testing.compare import compare_with_reference
from kanawa_kernel_tools.examples.attention import BASE, EXAMPLES, example_operands

_spec = importlib.util.spec_from_file_location("attention_oracle", Path(__file__).with_name("attention_oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

B, T, H, K, D, DV = 2, 6, 4, 2, 8, 5
SEGMENTS = np.array([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 2, 2]], np.int32)


@pytest.fixture
def qkv(normal):
    return normal(B, T, H, D), normal(B, T, K, D), normal(B, T, K, DV)


def run(*qkv, **options):
    """Attention, compiled as a whole: op by op it would take ten times as long."""
    static = {n: x for n, x in options.items() if n in ("mask", "mode", "logit_cap", "scale")}
    arrays = {n: x for n, x in options.items() if n not in static}
    return jax.jit(lambda *x, **named: attention(*x, **named, **static))(*qkv, **arrays)


def causal(b, t, s):
    return s <= t


CASES = {
    "causal": ({}, causal),
    "full": ({"mask": FULL}, lambda b, t, s: True),
    "window": ({"mask": sliding_window(3)}, lambda b, t, s: t - 2 <= s <= t),
    "chunk": (
        {"mask": MaskSpec(causal=True, chunk=4)},
        lambda b, t, s: s <= t and s // 4 == t // 4,
    ),
    "lookahead": (
        {"lookahead": np.array([0, 2, 1, 0, 1, 0])},
        lambda b, t, s: s <= t + (0, 2, 1, 0, 1, 0)[t],
    ),
    "lookahead in a window": (
        {"lookahead": np.array([0, 2, 1, 0, 1, 0]), "mask": sliding_window(3), "q_segment_ids": SEGMENTS},
        lambda b, t, s: t - 2 <= s <= t + (0, 2, 1, 0, 1, 0)[t] and SEGMENTS[b, s] == SEGMENTS[b, t],
    ),
    "segments": (
        {"q_segment_ids": SEGMENTS},
        lambda b, t, s: s <= t and SEGMENTS[b, s] == SEGMENTS[b, t],
    ),
    "prefix": (
        {"mask": MaskSpec(causal=True, prefix=True), "prefix_lengths": np.array([4, 0])},
        lambda b, t, s: s <= t or s < (4, 0)[b],
    ),
    "positions": (
        {
            "q_positions": np.array([[5, 0, 3, 1, 2, 4]] * B),
            "kv_positions": np.arange(6)[::-1].copy(),
        },
        lambda b, t, s: 5 - s <= (5, 0, 3, 1, 2, 4)[t],
    ),
    "lengths": (
        {"mask": FULL, "kv_lengths": np.array([2, 5], np.int32)},
        lambda b, t, s: s < (2, 5)[b],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_masks_match_the_oracle(case, qkv):
    options, allowed = CASES[case]
    options = {n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    expected = oracle.attend(*qkv, allowed, D**-0.5)
    np.testing.assert_allclose(run(*qkv, **options), expected, atol=2e-6)


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_bias_sinks_cap_and_scale_match_the_oracle(kv_heads, qkv, normal):
    q, k, v = qkv
    k, v = (jnp.repeat(x[:, :, :1], kv_heads, axis=2) for x in (k, v))
    k += normal(*k.shape)
    bias = normal(1, H, T, T)
    sinks = normal(H)
    found = run(q, k, v, bias=bias, sinks=sinks, logit_cap=1.5, scale=0.7)
    expected = oracle.attend(q, k, v, causal, 0.7, bias, np.asarray(sinks), 1.5)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_decoding_equals_the_last_row_of_the_whole(qkv):
    q, k, v = qkv
    lengths = jnp.array([4, 6], jnp.int32)
    step = jnp.take_along_axis(q, (lengths - 1)[:, None, None, None], axis=1)
    found = run(step, k, v, kv_lengths=lengths, mode="decode")
    whole = run(*qkv)
    for row in range(B):
        np.testing.assert_allclose(found[row, 0], whole[row, lengths[row] - 1], atol=1e-6)


def test_pages_equal_the_dense_cache(qkv, normal):
    q, k, v = qkv
    lengths = jnp.array([5, 6], jnp.int32)
    table = jnp.array([[3, 0, 5], [1, 4, 2]], jnp.int32)
    pools = []
    for x in (k, v):
        pool = jnp.zeros((6, 2, *x.shape[2:])).at[table.reshape(-1)].set(x.reshape(6, 2, *x.shape[2:]))
        pools.append(pool)
    options = {"kv_lengths": lengths, "mode": "prefill"}
    expected = run(q[:, -2:], k, v, **options)
    found = run(q[:, -2:], *pools, page_table=table, **options)
    np.testing.assert_allclose(found, expected, atol=1e-6)

    ragged = jnp.concatenate([q[0, -2:], q[1, -1:], jnp.full((1, H, D), 9.0)])[None]
    starts = jnp.array([0, 2, 3], jnp.int32)
    packed = run(ragged, *pools, page_table=table, query_starts=starts, **options)
    np.testing.assert_allclose(packed[0, :2], expected[0], atol=1e-6)
    np.testing.assert_allclose(packed[0, 2], expected[1, 1], atol=1e-6)
    np.testing.assert_array_equal(packed[0, 3], 0)


def test_a_query_without_keys_gets_zero_and_finite_gradients(qkv):
    @jax.jit
    def total(q, k, v, sinks=None):
        lengths = jnp.array([0, 3], jnp.int32)
        return attention(q, k, v, mask=FULL, kv_lengths=lengths, sinks=sinks)

    for sinks in (None, jnp.zeros(H)):
        out = total(*qkv, sinks)
        np.testing.assert_array_equal(out[0], 0)
        assert jnp.all(out[1] != 0)
        loss = jax.grad(lambda *x, s=sinks: jnp.sum(total(*x, s) ** 2), argnums=(0, 1, 2))
        grads = jax.jit(loss)(*qkv)
        for grad in grads:
            assert jnp.all(jnp.isfinite(grad))
            np.testing.assert_array_equal(grad[0], 0)


def test_gradients_match_finite_differences(qkv, normal):
    bias, sinks = normal(1, H, 3, 3), normal(H)
    small = tuple(x[:1, :3] for x in qkv)

    @jax.jit
    def out(q, k, v, bias, sinks):
        return attention(q, k, v, bias=bias, sinks=sinks, logit_cap=2.0)

    check_grads(out, (*small, bias, sinks), order=1, modes=("rev",), atol=2e-2, rtol=2e-2, eps=1e-2)


class ByLogSumExp(type(EXAMPLES.reference)):
    """The reference with its own backward, as ring attention uses it."""

    autodiff = False


@pytest.mark.parametrize("index", [5, 7])
def test_backward_from_the_log_sum_exp_agrees_with_autodiff(index):
    import dataclasses

    problem = EXAMPLES.problems[index]
    bias = problem.bias_shape and tuple(min(n, 32) for n in problem.bias_shape)
    problem = dataclasses.replace(problem, q_length=32, kv_length=32, bias_shape=bias)
    (agreement,) = compare_with_reference(ByLogSumExp(), [problem])
    assert agreement.ok and not agreement.refused, agreement.describe()


def hand_written(q, k, v):
    """What one would write without a framework."""
    scores = jnp.einsum("bthd,bshd->bhts", q * q.shape[-1] ** -0.5, k)
    mask = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))[None, None]
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def test_it_costs_what_hand_written_attention_costs():
    x = jnp.ones((2, 128, 4, 32))

    def compiled(f):
        loss = jax.jit(jax.grad(lambda *x: jnp.sum(f(*x) ** 2), argnums=(0, 1, 2)))
        with use_plan(ExecutionPlan(kernels=KernelPolicy(pins=(("attention", "attention.any.reference"),)))):
            return loss.lower(x, x, x).compile()

    ours, theirs = compiled(attention), compiled(hand_written)
    assert ours.cost_analysis()["flops"] <= theirs.cost_analysis()["flops"] * 1.01
    temporaries = [c.memory_analysis().temp_size_in_bytes for c in (ours, theirs)]
    assert temporaries[0] <= temporaries[1] * 1.01


def test_causal_is_the_default_and_dtype_is_kept(qkv):
    q, k, v = (x.astype(jnp.bfloat16) for x in qkv)
    found = run(q, k, v)
    assert found.dtype == jnp.bfloat16
    exact = run(*(x.astype(jnp.float32) for x in (q, k, v)), mask=CAUSAL)
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=3e-2)


UNUSED = {
    "one token": {"mode": "decode", "q_length": 1},
    "pages": {"mode": "decode", "q_length": 1, "page_size": 16},
    "a prompt": {"mode": "prefill", "q_length": 80, "mask": FULL},
    "ragged, pages": {"mode": "prefill", "batch": 1, "q_length": 40, "page_size": 16, "ragged_sequences": 3},
}


@pytest.mark.parametrize("case", UNUSED)
def test_a_nan_behind_a_rows_end_reaches_nobody(case):
    """What a sequence that broke leaves in a cache is weighed with zero by the next one that gets its place."""
    problem = dataclasses.replace(BASE, has_kv_lengths=True, **UNUSED[case])
    operands = example_operands(problem, np.random.default_rng(0))
    broken = broken_rest(problem, operands)
    attend = jax.jit(functools.partial(ReferenceAttention().apply, problem))
    np.testing.assert_array_equal(attend(operands | broken), attend(operands))


def test_a_sink_of_minus_infinity_has_no_gradient_even_in_a_row_without_keys():
    lse = jnp.array([[[-jnp.inf, 0.5], [0.0, 1.0]]])
    gradient = sinks_gradient(jnp.array([-jnp.inf, 0.0]), lse, jnp.ones((1, 2, 2)))
    np.testing.assert_allclose(gradient, [0.0, -(1 + np.exp(-1.0))], rtol=1e-6)
