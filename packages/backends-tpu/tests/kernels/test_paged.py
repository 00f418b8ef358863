"""The paged kernel in Pallas's interpreter against core's reference, and what it refuses."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_rest import broken_rest
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import CAUSAL, MaskSpec, sliding_window
from kanawa.kernels.operation import Tuning
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_tpu.kernels.attention.paged import PagedAttention
from kanawa_backends_tpu.kernels.attention.paged_layout import order_of
from kanawa_kernel_tools.examples.attention import example_operands


class Interpreted(PagedAttention):
    """The same kernel without a TPU, in blocks small enough that there are several, on two cores where they divide."""

    interpret: ClassVar[bool] = True
    cores: ClassVar[int | None] = 2
    tuning: Tuning = (("block_keys", 32), ("block_rows", 32))


PLAIN = AttentionProblem(
    batch=4,
    q_length=1,
    kv_length=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=128,
    v_head_dim=128,
    dtype="float32",
    mask=CAUSAL,
    scale=0.125,
    has_kv_lengths=True,
    mode="decode",
    page_size=16,
)
DENSE = {"page_size": None}
PREFILL = {"mode": "prefill", "q_length": 40}
RAGGED = {"mode": "prefill", "batch": 1, "q_length": 90, "ragged_sequences": 4}
LANES = {"head_dim": 64, "v_head_dim": 64, "page_size": 128, "kv_length": 384}
NARROW = {"head_dim": 64, "v_head_dim": 64}
CASES: tuple[dict[str, Any], ...] = (
    NARROW,
    {**NARROW, **DENSE, "kv_length": 200, "dtype": "bfloat16"},
    {**NARROW, **RAGGED, "page_size": 32, "kv_length": 160, "mask": sliding_window(20)},
    {"mask": sliding_window(20), "has_sinks": True, "logit_cap": 5.0, "dtype": "bfloat16", "scale": 0.1},
    {"num_heads": 6, "num_kv_heads": 3},
    LANES,
    {**DENSE, "num_kv_heads": 1, "dtype": "bfloat16"},
    {**PREFILL, "mask": MaskSpec(causal=True, chunk=24), "dtype": "bfloat16", "has_sinks": True},
    {**PREFILL, **LANES, **DENSE, "mask": MaskSpec(window=(9, 4))},
    RAGGED,
    {**RAGGED, "num_heads": 24, "num_kv_heads": 8, "mask": sliding_window(20)},
)


class TestPaged(KernelConformance):
    """Each case has an order in memory, a kind of call, and masks that end within blocks."""

    narrow: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **{"mode": ("decode", "prefill"), "q_length": (40,), "kv_length": (200, 256), "kv_lengths": (True,)},
        **{"dtype": ("float32", "bfloat16"), "positions": (None,), "bias": (None,), "segments": (False,)},
        **{"prefix": (False,), "predicates": ((),), "any_of": ((),), "head_dims": ((64, 64), (128, 128), (256, 256))},
    }
    generated: ClassVar[int] = 4
    generated_nightly: ClassVar[int] = 40
    fewest_accepted: ClassVar[int] = 4

    def kernel(self) -> PagedAttention:
        return Interpreted()

    def problems(self) -> tuple[AttentionProblem, ...]:
        return tuple(dataclasses.replace(PLAIN, **case) for case in CASES)


def test_a_page_outside_of_the_pool_is_never_read():
    """Every entry is wrong, those of keys that are needed too: pages at the pool's ends are read in their place."""
    operands = example_operands(PLAIN, np.random.default_rng(0))
    wrong = np.where(operands["page_table"] % 2 == 0, -7, 2**30).astype(np.int32)
    at_the_ends = np.where(wrong < 0, 0, operands["k"].shape[0] - 1).astype(np.int32)

    @jax.jit
    def attend(table: jax.Array) -> jax.Array:
        return Interpreted().apply(PLAIN, {**operands, "page_table": table})

    np.testing.assert_array_equal(attend(jnp.asarray(wrong)), attend(jnp.asarray(at_the_ends)))


def test_what_lies_in_pages_that_no_row_owns_is_not_seen():
    operands = example_operands(PLAIN, np.random.default_rng(0))
    lengths = operands["kv_lengths"]
    live = {int(page) for row, n in zip(operands["page_table"], lengths, strict=True) for page in row[: -(-n // 16)]}
    dead = [page for page in range(operands["k"].shape[0]) if page not in live]
    poisoned = {name: operands[name].copy() for name in ("k", "v")}
    for pool in poisoned.values():
        pool[dead] = np.nan

    @jax.jit
    def attend(pools: dict[str, Any]) -> jax.Array:
        return Interpreted().apply(PLAIN, {**operands, **pools})

    assert np.isfinite(attend(poisoned)).all()


@pytest.mark.parametrize(
    "case", [{}, {"num_heads": 6, "num_kv_heads": 3}, LANES, NARROW, RAGGED, {**DENSE, "dtype": "bfloat16"}]
)
def test_a_nan_behind_a_rows_end_reaches_nobody(case):
    """What a sequence that broke leaves in a page is weighed with zero by the next one that gets the page."""
    problem = dataclasses.replace(PLAIN, **case)
    operands = example_operands(problem, np.random.default_rng(0))

    @jax.jit
    def attend(pools: dict[str, Any]) -> jax.Array:
        return Interpreted().apply(problem, {**operands, **pools})

    clean, broken = attend({}), attend(broken_rest(problem, operands))
    np.testing.assert_array_equal(np.asarray(broken, np.float32), np.asarray(clean, np.float32))


def test_pools_are_viewed_in_the_order_that_xla_keeps():
    orders = {(8, 128): "tokens", (4, 256): "tokens", (1, 128): "heads", (10, 128): "heads", (8, 64): "lanes"}
    assert {shape: order_of(shape[0], shape[1], shape[1]) for shape in orders} == orders


REFUSALS: dict[str, dict[str, Any]] = {
    "no backward pass": {"mode": "train", "page_size": None, "has_kv_lengths": False},
    "no kv_lengths": {"page_size": None, "has_kv_lengths": False},
    "positions are operands": {"has_q_positions": True},
    "dense bias": {"bias_shape": (1, 4, 1, 96)},
    "mask has prefix": {"mask": MaskSpec(causal=True, prefix=True)},
    "dtype float16": {"dtype": "float16"},
    "take pages of 128 (page_size=128) or of a power of two below": {**NARROW, "page_size": 48},
    "take a multiple of 16": {"num_kv_heads": 1, "page_size": 8},
    "a page table or lengths of": {"batch": 1024, "kv_length": 16384},
    "kv_length 1021 has no divisor from 8 to 128": {"page_size": None, "kv_length": 1021},
    "MiB of on-chip memory": {"head_dim": 65536, "v_head_dim": 65536},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = PagedAttention().supports(dataclasses.replace(PLAIN, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


def test_what_narrow_pages_cost_is_told():
    taken = PagedAttention().supports(dataclasses.replace(PLAIN, **NARROW), None)
    assert taken
    assert "each call copies it; take pages of 128 (page_size=128)" in taken.reason
    padded = PagedAttention().supports(dataclasses.replace(PLAIN, **NARROW, **DENSE, kv_length=200), None)
    assert padded
    assert "rows of 200 keys are copied to whole multiples of 128" in padded.reason
    assert PagedAttention().supports(dataclasses.replace(PLAIN, **LANES), None).reason == ""


def test_dense_rows_have_no_table_to_be_too_large():
    """A table of as many pages would take 1 MiB of scalar memory, and there is none."""
    many = dataclasses.replace(PLAIN, page_size=None, batch=2048, kv_length=16384)
    verdict = PagedAttention().supports(many, None)
    assert verdict, verdict.reason
