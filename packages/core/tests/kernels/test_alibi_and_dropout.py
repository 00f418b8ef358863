"""ALiBi against its bias; dropout of weights: its share, its independence of blocks, its gradients, its guard."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels import CAUSAL, FULL, Kernel, MaskSpec, Verdict
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.dropout import dropout_ids, keep_mask, row_words, weight_factors
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.testing.compare import compare_with_reference
from kanawa_kernel_tools.examples.attention import BASE, EXAMPLES

SMALL = dataclasses.replace(BASE, q_length=24, kv_length=24, head_dim=8, v_head_dim=8)
RATE = 0.25


def test_alibi_is_the_bias_of_slope_times_distance_also_in_a_cache(normal):
    q, k, v, slopes = normal(2, 3, 4, 8), normal(2, 9, 2, 8), normal(2, 9, 2, 8), jnp.array([0.5, 0.25, 0.1, 0.0])
    lengths = jnp.array([5, 9], jnp.int32)
    ours = attention(q, k, v, alibi_slopes=slopes, kv_lengths=lengths, mode="prefill")
    at = lengths[:, None] - 3 + jnp.arange(3)[None]
    distance = jnp.abs(at[:, :, None] - jnp.arange(9)[None, None]).astype(jnp.float32)
    bias = -slopes[None, :, None, None] * distance[:, None]
    np.testing.assert_allclose(ours, attention(q, k, v, bias=bias, kv_lengths=lengths, mode="prefill"), atol=1e-6)


class ByLogSumExp(ReferenceAttention):
    """The reference with its own backward, as blocks and rings use it."""

    autodiff = False


@pytest.mark.parametrize("heads", [2, 4])
def test_backward_from_the_log_sum_exp_knows_both(heads):
    problem = dataclasses.replace(SMALL, num_kv_heads=heads, has_alibi=True, dropout_rate=RATE, has_sinks=True)
    (agreement,) = compare_with_reference(ByLogSumExp(), [problem])
    assert agreement.errors and agreement.ok, agreement.describe()


def words(problem, seed=0):
    operands = EXAMPLES.operands(dataclasses.replace(problem, dropout_rate=RATE), np.random.default_rng(seed))
    return {name: jnp.asarray(x) for name, x in operands.items()}


def test_the_share_is_right_everywhere_and_places_are_independent():
    problem = dataclasses.replace(SMALL, q_length=256, kv_length=256, dropout_rate=RATE)
    factors = np.asarray(weight_factors(dataclasses.replace(problem, num_kv_heads=4), words(problem), jnp.float32))
    dropped = factors == 0
    np.testing.assert_allclose(factors[~dropped], 1 / (1 - RATE), rtol=1e-6)
    # Means over 1024 weights or more: within five standard deviations of 0.0135.
    for axes in [(0, 1, 2), (0, 1, 3), (2, 3)]:
        assert np.all(np.abs(dropped.mean(axes) - RATE) < 0.07)
    flat = dropped.astype(np.float64) - RATE
    for axis in range(4):
        shifted = flat * np.roll(flat, 1, axis)
        assert abs(shifted.mean()) < 0.002, axis


def test_a_block_has_the_bits_of_its_place_in_the_whole():
    operands = words(SMALL)
    first, second = row_words(operands)
    whole = keep_mask(first[..., None], second[..., None], jnp.arange(24, dtype=jnp.uint32)[None, None, None], RATE)
    part = {**operands, "dropout_queries": operands["dropout_queries"][1:, 8:16], "dropout_heads": jnp.uint32([2, 3])}
    first, second = row_words(part)
    block = keep_mask(first[..., None], second[..., None], jnp.arange(16, 24, dtype=jnp.uint32)[None, None, None], RATE)
    np.testing.assert_array_equal(block, whole[1:, 2:, 8:16, 16:])


def test_another_key_drops_others_and_the_same_the_same(normal):
    q, k, v = (normal(2, 24, 4, 8) for _ in range(3))
    call = jax.jit(lambda key: attention(q, k, v, mask=FULL, dropout_rate=RATE, dropout_key=key))
    outs = [call(jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(outs[0], outs[1])
    assert np.max(np.abs(outs[0] - outs[2])) > 0.05
    # Averaged over keys, it is attention without dropout.
    mean = jnp.mean(jax.lax.map(call, jax.random.split(jax.random.key(2), 256)), axis=0)
    np.testing.assert_allclose(mean, attention(q, k, v, mask=FULL), atol=0.12)


def test_shards_drop_what_one_device_drops(normal):
    from kanawa.arrays.plan import ExecutionPlan, use_plan

    q, k, v = (normal(4, 16, 4, 8) for _ in range(3))
    key = jax.random.key(3)

    @jax.jit
    def call(q, k, v):
        return attention(q, k, v, mask=CAUSAL, dropout_rate=RATE, dropout_key=key)

    mesh = jax.make_mesh((2, 2, 2), ("data", "seq", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    rules = (("batch", ("data",)), ("length", ("seq",)), ("heads", ("tensor",)))
    whole = call(q, k, v)
    with jax.set_mesh(mesh), use_plan(ExecutionPlan(activation_rules=rules)):
        np.testing.assert_allclose(call(q, k, v), whole, atol=1e-6)


def test_a_program_holds_no_array_of_all_tokens(normal):
    q = normal(4, 64, 2, 8)

    def call(q):
        return attention(q, q, q, mask=FULL, dropout_rate=RATE, dropout_key=jax.random.key(0))

    assert all(getattr(const, "size", 0) < 4 * 64 for const in jax.jit(call).trace(q).jaxpr.consts)


@pytest.mark.parametrize("dtype", ["uint8", "uint32"])
def test_positions_of_any_integers_have_distances(normal, dtype):
    q, slopes = normal(1, 24, 2, 8), jnp.array([0.5, 0.25])
    at = jnp.arange(24)

    def call(at):
        mask = MaskSpec(causal=True, window=(3, None))
        return attention(q, q, q, mask=mask, alibi_slopes=slopes, q_positions=at, kv_positions=at)

    np.testing.assert_array_equal(call(at.astype(dtype)), call(at))


class Old(Kernel):
    """Written before either feature: it supports whatever it is asked."""

    name: ClassVar[str] = "attention.cpu.old"
    operation: ClassVar[str] = "attention"

    def supports(self, problem, device):
        return Verdict(ok=True)

    def forward(self, problem, operands):
        return ReferenceAttention().forward(problem, operands)


def test_a_kernel_that_has_never_heard_of_a_feature_is_not_asked():
    problem = dataclasses.replace(SMALL, has_alibi=True, dropout_rate=RATE)
    assert Old().verdict(problem, None).reason == "it doesn't take alibi, dropout"
    assert Old().verdict(SMALL, None)
    assert ReferenceAttention().verdict(problem, None)
    assert dropout_ids(SMALL)["dropout_queries"].shape == (2, 24)
