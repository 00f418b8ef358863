"""Attention over pages on a CPU against the reference: rows of all lengths, windows, and pools that aren't copied."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention import attention
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_cpu.kernels.attention.paged import PagedAttention
from kanawa_kernel_tools.examples.attention import BASE, example_operands

PAGED = dataclasses.replace(
    BASE, mode="decode", q_length=1, kv_length=64, page_size=4, head_dim=8, v_head_dim=8, has_kv_lengths=True
)


class SmallChunks(PagedAttention):
    """The same algorithm with chunks that suit a test: several a row, and a loop."""

    decode_keys = prefill_keys = 8
    most_rows = 8
    fewest_items = 2


CHANGES = {
    "decode": {},
    "grouped bfloat16": {"num_kv_heads": 1, "dtype": "bfloat16"},
    "window, cap, sinks": {"mask": sliding_window(5), "logit_cap": 2.0, "num_kv_heads": 2, "has_sinks": True},
    "a step behind a prefix": {"mask": MaskSpec(causal=True, prefix=True), "has_q_positions": True},
    "a step, alibi, chunks": {"mask": MaskSpec(causal=True, chunk=16), "has_alibi": True},
    "a step, all keys": {"mask": FULL},
    "a step in two heads of many": {"num_heads": 32, "num_kv_heads": 2},
    "prefill behind a prefix": {"mode": "prefill", "q_length": 5, "mask": MaskSpec(causal=True, prefix=True)},
    "alibi, own positions": {"mode": "prefill", "q_length": 3, "has_alibi": True, "has_q_positions": True},
    "one row, all keys": {"batch": 1, "q_length": 4, "mode": "prefill", "mask": FULL, "v_head_dim": 4},
    "pages that don't fill a chunk": {"page_size": 3, "kv_length": 51, "mask": CAUSAL},
}


@pytest.mark.parametrize("change", CHANGES)
def test_agrees_with_the_reference(change):
    problem = dataclasses.replace(PAGED, **CHANGES[change])
    (agreement,) = compare_with_reference(SmallChunks(), [problem])
    assert agreement.errors and agreement.ok, agreement.describe()


class TestPaged(KernelConformance):
    """Generated problems, those of few pages computed without a loop among them."""

    narrow: ClassVar = {"q_length": (1, 3), "page_size": (4, 8), "mode": ("decode", "prefill"), "bias": (None,)}
    generated = 4

    def kernel(self):
        return SmallChunks()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pool_is_read_page_by_page(dtype):
    # XLA widens what reads a bfloat16 array, and moves that before a loop: a copy of the pool for every layer and step.
    pool = jax.ShapeDtypeStruct((512, 16, 2, 64), dtype)
    q, table = jax.ShapeDtypeStruct((4, 1, 4, 64), dtype), jax.ShapeDtypeStruct((4, 64), "int32")

    def decode(q, k, v, table, lengths):
        return attention(q, k, v, page_table=table, kv_lengths=lengths, mode="decode")

    # Where llvmlite is installed, another kernel would be chosen.
    with use_plan(ExecutionPlan(kernels=KernelPolicy(pins=(("attention", "attention.cpu.paged"),)))):
        compiled = jax.jit(decode).lower(q, pool, pool, table, jax.ShapeDtypeStruct((4,), "int32")).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < pool.size * jnp.dtype(dtype).itemsize


@pytest.mark.parametrize("length", [1, 3])
def test_a_row_that_broke_says_so_and_no_other_changes(length):
    problem = dataclasses.replace(PAGED, mode="prefill" if length > 1 else "decode", q_length=length)
    operands = example_operands(problem, np.random.default_rng(0))
    operands["kv_lengths"] = np.full(problem.batch, 9, np.int32)
    operands["page_table"] = np.arange(operands["page_table"].size, dtype=np.int32).reshape(problem.batch, -1)
    broken = {**operands, "k": operands["k"].copy()}
    broken["k"][operands["page_table"][1, 0], 0] = np.nan
    attend = jax.jit(functools.partial(PagedAttention().forward, problem))
    for actual, expected in zip(attend(broken), attend(operands), strict=True):
        assert np.isnan(actual[1]).all()
        np.testing.assert_array_equal(actual[0], expected[0])


def test_pages_of_bits_hold_the_same_numbers():
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 3)
    q, k, v = (
        jax.random.normal(key, shape, jnp.bfloat16)
        for key, shape in zip(keys, ((3, 1, 4, 8), (12, 4, 2, 8), (12, 4, 2, 8)), strict=True)
    )
    bits = [jax.lax.bitcast_convert_type(x, jnp.uint16) for x in (k, v)]
    table, lengths = jnp.arange(12, dtype=jnp.int32).reshape(3, 4), jnp.array([1, 7, 16], jnp.int32)
    serve = functools.partial(attention, page_table=table, kv_lengths=lengths, mode="decode")
    expected = serve(q, k, v)
    # Of bits weights stay in fp32; of bfloat16 they are rounded before they meet values.
    np.testing.assert_allclose(serve(q, *bits).astype(jnp.float32), expected.astype(jnp.float32), atol=0.01)
    with use_plan(ExecutionPlan(kernels=KernelPolicy(pins=(("attention", "attention.any.reference"),)))):
        plain = serve(q, *bits)
    np.testing.assert_allclose(plain.astype(jnp.float32), expected.astype(jnp.float32), atol=0.03)
    with pytest.raises(KernelError, match="k is uint16, bits of a float of 16, and q is float32"):
        serve(q.astype(jnp.float32), *bits)
