"""What a problem is made of, counted: pairs against the mask itself, and scopes that reach both passes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.choice import scope_name
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.linear_recurrence import LinearRecurrenceProblem
from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.operation import Kernel
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem
from kanawa.kernels.softmax_cross_entropy import CrossEntropyProblem
from kanawa.kernels.verdict import SUPPORTED

SIDES = st.one_of(st.none(), st.integers(0, 5))


def problem(mask, queries=6, keys=6, **changes):
    return AttentionProblem(
        batch=2, q_length=queries, kv_length=keys, num_heads=4, num_kv_heads=2, head_dim=8, v_head_dim=8,
        dtype="float32", mask=mask, scale=1.0, **changes,
    )  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    causal=st.booleans(),
    window=st.one_of(st.none(), st.tuples(SIDES, SIDES)),
    chunk=st.one_of(st.none(), st.integers(1, 7)),
    queries=st.integers(1, 9),
    more=st.integers(0, 9),
    cached=st.booleans(),
)
def test_pairs_are_those_that_the_mask_leaves(causal, window, chunk, queries, more, cached):
    mask = MaskSpec(causal=causal, window=window, chunk=chunk)
    keys = queries + more
    first = more if cached else 0
    allowed = mask.allowed(jnp.arange(first, first + queries), jnp.arange(keys))
    expected = queries * keys if allowed is None else int(np.sum(np.broadcast_to(allowed, (1, queries, keys))))
    assert problem(mask, queries, keys, has_kv_lengths=cached).pairs == expected


def test_a_matmul_of_attention_is_two_flops_a_pair_and_number_of_a_head():
    causal = problem(MaskSpec(causal=True))
    assert causal.matmul_flops == 2 * (2 * 4 * 21) * 8
    wide = dataclasses.replace(causal, v_head_dim=24)
    assert wide.matmul_flops == 2 * (2 * 4 * 21) * (8 + 24) / 2


def test_a_grouped_matmul_costs_every_row_once():
    sizes = GroupedMatmulProblem(rows=100, inner=16, columns=32, groups=8, dtype="bfloat16", rhs_dtype="bfloat16")
    assert sizes.matmul_flops == 2 * 100 * 16 * 32


def test_one_matmul_of_the_other_operations():
    product = QuantizedMatmulProblem(
        lhs_shape=(2, 3, 8, 4), rhs_shape=(8, 4, 5), num_contracted=2, groups=1,
        lhs_format="int8", rhs_format="int8", dtype="float32",
    )  # fmt: skip
    assert product.matmul_flops == 2 * (2 * 3) * (8 * 4) * 5
    head = CrossEntropyProblem(tokens=6, width=8, vocab=50, dtype="float32", weight_dtype="float32")
    assert head.matmul_flops == 2 * 6 * 8 * 50
    states = LinearRecurrenceProblem(
        batch=2, length=7, num_groups=1, num_heads=3, key_dim=4, value_dim=5, dtype="float32"
    )
    assert states.matmul_flops == 2 * (2 * 7 * 3) * (4 * 5)


class Doubled(Kernel):
    """y = 2 x, with a backward of its own."""

    name = "attention.any.doubled"
    operation = "attention"

    def supports(self, problem, device):
        return SUPPORTED

    def forward(self, problem, operands):
        return jnp.sin(operands["q"]), ()

    def backward(self, problem, operands, out, residuals, cotangents):
        return {"q": jnp.cos(operands["q"]) * cotangents}


class Derived(Doubled):
    """The same, differentiated by JAX."""

    name = "attention.any.derived"
    autodiff = True


@pytest.mark.parametrize("kernel", [Doubled(), Derived()], ids=["own", "derived"])
def test_instructions_of_both_passes_are_named_after_the_call(kernel):
    causal, full = problem(MaskSpec(causal=True)), problem(MaskSpec())

    def loss(q):
        # Different operands: the compiler would do equal work once, under either name.
        return jnp.sum(call(kernel, causal, {"q": q, "v": q}) * call(kernel, full, {"q": 2 * q, "v": q}))

    text = jax.jit(jax.value_and_grad(loss)).lower(jnp.ones((2, 6, 4, 8))).compile().as_text()
    lines = [line for line in text.splitlines() if "metadata" in line]
    for asked in (causal, full):
        named = [line for line in lines if scope_name(kernel.name, asked.describe()) in line]
        assert any("sine(" in line for line in named)
        assert any("cosine(" in line for line in named)
    assert scope_name(kernel.name, causal.describe()) != scope_name(kernel.name, full.describe())
