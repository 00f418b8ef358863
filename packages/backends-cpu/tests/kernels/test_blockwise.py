"""Blockwise attention against the reference, its skipping of empty blocks, and its refusals."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_rest import broken_rest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.gradient import block_gradient, row_delta
from kanawa.kernels.attention.operands import mask_array
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_cpu.kernels.attention.blockwise import BlockwiseAttention
from kanawa_backends_cpu.kernels.attention.tiles import spans, visible
from kanawa_backends_cpu.kernels.matmul.available import why_no_native, why_no_onednn
from kanawa_kernel_tools.examples.attention import BASE, EXAMPLES, example_operands

SMALL = dataclasses.replace(BASE, q_length=32, kv_length=32, head_dim=8, v_head_dim=8)


class SmallBlocks(BlockwiseAttention):
    """The same algorithm with blocks that suit a test."""

    shortest = 16
    fewest_queries = 4
    smallest_tile = largest_tile = 8
    most_spans = 5


CHANGES = {
    "multi-query bfloat16": {"num_kv_heads": 1, "dtype": "bfloat16"},
    "window, cap, segments, sinks": {
        "mask": sliding_window(11) & MaskSpec(segments=True),
        "logit_cap": 2.0,
        "num_kv_heads": 4,
        "has_sinks": True,
    },
    "bias per head": {"bias_shape": (1, 4, 32, 32), "v_head_dim": 4},
    "offset queries, prefix, broadcast bias": {
        "q_length": 16,
        "has_q_positions": True,
        "bias_shape": (2, 1, 1, 32),
        "mask": MaskSpec(causal=True, prefix=True),
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_agrees_with_the_reference(change):
    problem = dataclasses.replace(SMALL, **CHANGES[change])
    (agreement,) = compare_with_reference(SmallBlocks(), [problem])
    assert agreement.errors and agreement.ok, agreement.describe()


def test_lengths_need_no_divisor_and_rows_may_differ_in_length():
    uneven = dataclasses.replace(SMALL, q_length=27, kv_length=37, has_kv_lengths=True)
    for agreement in compare_with_reference(SmallBlocks(), [uneven, dataclasses.replace(uneven, mask=FULL)]):
        assert agreement.errors and agreement.ok, agreement.describe()


class TestBlockwise(KernelConformance):
    """Every length that its tiles are cut from, on generated problems."""

    # A bias that is one number for all keys of a row has a gradient of zero: there is nothing to be relative to.
    narrow: ClassVar = {"q_length": (16, 27), "kv_length": (None, 29), "bias": (None, "bhqk", "hqk", "bk", "qk")}
    generated = 6

    def kernel(self):
        return SmallBlocks()


MASKS = [
    FULL,
    MaskSpec(causal=True),
    sliding_window(5),
    MaskSpec(window=(3, 9)),
    MaskSpec(chunk=12),
    MaskSpec(causal=True, chunk=8),
    MaskSpec(causal=True, prefix=True),
    MaskSpec(causal=True) & MaskSpec(any_of=((MaskSpec(window=(2, 2)), MaskSpec(chunk=16)),)),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.describe())
def test_what_is_known_of_a_tile_is_what_its_mask_says(mask):
    problem = dataclasses.replace(SMALL, mask=mask, q_length=30, kv_length=30)
    operands = {"prefix_lengths": jnp.array([30, 30])} if mask.prefix else {}
    dense = mask_array(problem, operands)
    dense = np.ones((1, 30, 30), bool) if dense is None else np.asarray(dense)
    for queries in spans(30, 7):
        for keys in spans(30, 4):
            tile = dense[:, slice(*queries), slice(*keys)]
            known = visible(problem, queries, keys)
            assert known != "none" or not tile.any()
            assert known != "all" or tile.all()
            if not (mask.prefix or mask.any_of):
                assert known == ("all" if tile.all() else "some" if tile.any() else "none")


def test_memory_grows_with_length_not_with_its_square():
    x = jax.ShapeDtypeStruct((1, 4096, 1, 8), jnp.float32)
    pins = KernelPolicy(pins=(("attention", "attention.cpu.blockwise"),))
    with use_plan(ExecutionPlan(kernels=pins)):
        compiled = jax.jit(attention).lower(x, x, x).compile()
    scores = 4 * 4096 * 4096
    assert compiled.memory_analysis().temp_size_in_bytes < scores / 8


LONG = dataclasses.replace(BASE, q_length=4096, kv_length=4096)
REFUSALS = {
    "kv_length 127 is under 128": {"q_length": 127, "kv_length": 127},
    "keys are paged": {"page_size": 16, "has_kv_lengths": True},
    "q_length 1 is under 64": {"q_length": 1, "has_q_positions": True},
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refuses_with_a_reason(words):
    verdict = BlockwiseAttention().supports(dataclasses.replace(LONG, **REFUSALS[words]), None)
    assert not verdict.ok and words in verdict.reason
    accepted = ({}, {"q_length": 128, "kv_length": 128}, {"has_kv_lengths": True, "kv_length": 4099})
    assert all(BlockwiseAttention().supports(dataclasses.replace(LONG, **change), None).ok for change in accepted)


@pytest.mark.skipif(why_no_native() and why_no_onednn("float32"), reason="no matmul but XLA's for this processor")
@pytest.mark.parametrize(("platform", "called"), [(None, True), ("cpu", False)])
def test_tiles_are_multiplied_beside_xla_where_the_program_runs_here_also_under_vmap(platform, called):
    x = jnp.zeros((2, 1, 128, 2, 32))
    call = "kanawa_matmul" if why_no_native() is None else "__onednn$matmul"
    pins = KernelPolicy(pins=(("attention", "attention.cpu.blockwise"),))
    with use_plan(ExecutionPlan(kernels=pins, platform=platform)):
        for function, operand in ((attention, x[0]), (jax.vmap(attention), x)):
            assert (call in jax.jit(function).lower(operand, operand, operand).as_text()) == called


def test_tiles_can_be_differentiated_twice():
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 128, 1, 8)) for i in range(3))

    def twice(attend):
        slope = jax.grad(lambda q: jnp.sum(attend(q, k, v) ** 2))
        return jax.jit(jax.grad(lambda q: jnp.sum(slope(q) ** 2)))(q)

    right = twice(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    np.testing.assert_allclose(twice(attention), right, atol=2e-5 * float(jnp.max(jnp.abs(right))))


@pytest.mark.parametrize("length", [128, 1000, 4096, 6656, 16384, 131072])
def test_a_length_of_any_size_is_cut_into_few_tiles(length):
    kernel = BlockwiseAttention()
    tiling = kernel._tiling(dataclasses.replace(BASE, q_length=length, kv_length=length))
    assert sum(map(len, tiling.pairs)) <= 91
    assert tiling.queries[0].stop <= 512 or length > 6656


def test_the_gradients_of_blocks_are_rounded_once_all_are_summed():
    """In bfloat16 as near to the truth as one product over all keys: parts rounded one by one would be further off."""
    problem = dataclasses.replace(SMALL, q_length=64, kv_length=256, num_kv_heads=4, mask=FULL, dtype="bfloat16")
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(2, 64, 4, 8), (2, 256, 4, 8), (2, 256, 4, 8), (2, 64, 4, 8)]
    q, k, v, dout = (jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True))
    kernel, operands = SmallBlocks(), {"q": q, "k": k + 3, "v": v}
    out, lse = kernel.forward(problem, operands)
    tiles = kernel.backward(problem, operands, out, lse, dout)["q"]
    whole = block_gradient(problem, operands, None, lse, row_delta(out, dout), dout)["q"]
    assert tiles.dtype == whole.dtype == jnp.float32
    exact = dataclasses.replace(problem, dtype="float32")
    wide = {name: x.astype(jnp.float32) for name, x in operands.items()}
    right = block_gradient(exact, wide, None, lse, row_delta(out, dout), dout.astype(jnp.float32))["q"]
    error = lambda x: float(jnp.sqrt(jnp.mean(jnp.square(x - right))))  # noqa: E731
    assert error(tiles) < 1.5 * error(whole)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", [FULL, CAUSAL])
@pytest.mark.parametrize("kernel", [SmallBlocks, type(EXAMPLES.reference)])
def test_a_bias_of_minus_infinity_on_all_that_a_row_sees_hides_it_as_a_mask_does(kernel, mask, kv_heads):
    """Softmax of nothing but -inf is NaN, and where a mask hides the others it would be the mean of those."""
    problem = dataclasses.replace(SMALL, mask=mask, num_kv_heads=kv_heads, bias_shape=(1, 1, 32, 32))
    operands = {name: jnp.asarray(x) for name, x in example_operands(problem, np.random.default_rng(0)).items()}
    hidden = [3, 9, 31]
    # Keys after a query have a finite bias: were they not masked, they would be seen.
    rows = jnp.arange(32)
    gone = jnp.isin(rows, jnp.asarray(hidden))[:, None] & (rows[None] <= (rows[:, None] if mask == CAUSAL else 31))
    operands["bias"] = jnp.where(gone, -jnp.inf, operands["bias"])

    out, lse = kernel().forward(problem, operands)
    assert not np.asarray(out[:, hidden]).any() and np.isneginf(lse[:, :, hidden]).all()
    kept = [row for row in range(32) if row not in hidden]
    assert np.isfinite(lse[:, :, kept]).all() and np.abs(out[:, kept]).min(axis=(0, 2, 3)).all()
    grads = kernel().backward(problem, operands, out, lse, jnp.ones_like(out))
    assert all(np.isfinite(grad).all() for grad in grads.values())
    assert not np.asarray(grads["q"][:, hidden]).any() and not np.asarray(grads["bias"][..., hidden, :]).any()
    right = jax.grad(lambda q: jnp.sum(EXAMPLES.reference.apply(problem, {**operands, "q": q})))(operands["q"])
    np.testing.assert_allclose(grads["q"], right, atol=1e-5)


@pytest.mark.parametrize("mask", [CAUSAL, FULL])
def test_a_nan_behind_a_rows_end_does_not_reach_other_rows(mask):
    problem = dataclasses.replace(BASE, has_kv_lengths=True, mode="prefill", q_length=80, mask=mask)
    operands = example_operands(problem, np.random.default_rng(0))
    broken = broken_rest(problem, operands)
    attend = jax.jit(functools.partial(BlockwiseAttention().apply, problem))
    np.testing.assert_array_equal(attend(operands | broken), attend(operands))
