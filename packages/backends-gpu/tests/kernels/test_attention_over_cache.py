"""Decode and paged attention in Pallas's interpreter against core's reference, what they never read, and refusals."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention.merge import merge
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.operation import Kernel, Tuning
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_gpu.kernels.attention.cached import DecodeAttention, PagedAttention
from kanawa_backends_gpu.kernels.attention.streaming import geometry_of
from kanawa_backends_gpu.kernels.triton_tiles import pieces
from kanawa_kernel_tools.examples.attention import EXAMPLES, example_operands


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Shapes that only rank promotion fits together are errors, as wherever a user's tests are strict."""
    with jax.numpy_rank_promotion("raise"):
        yield


#: Short steps, so that a few keys make several of them, and several shares.
STEPS: Tuning = (("keys", 16),)


class Decode(DecodeAttention):
    """The same kernel without a GPU."""

    interpret: ClassVar[bool] = True
    tuning = STEPS


class Paged(PagedAttention):
    """The same kernel without a GPU."""

    interpret: ClassVar[bool] = True
    tuning = STEPS


BASE = AttentionProblem(
    batch=2, q_length=1, kv_length=192, num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype="float32",
    mask=CAUSAL, scale=0.2, mode="decode", has_kv_lengths=True,
)  # fmt: skip
EXPLICIT = {"has_kv_lengths": False, "has_q_positions": True, "has_kv_positions": True}
PREFILL: dict[str, Any] = {"mode": "prefill", "q_length": 9}
RAGGED: dict[str, Any] = {"mode": "prefill", "batch": 1, "q_length": 20, "ragged_sequences": 3, "page_size": 16}
DECODE: dict[str, dict[str, Any]] = {
    "one query, three heads a key head": {"num_heads": 6, "num_kv_heads": 2},
    "bfloat16": {"dtype": "bfloat16"},
    "one key head, a few queries": {**PREFILL, "num_kv_heads": 1},
    "as many key heads": {"num_kv_heads": 4, "kv_length": 40},
    "more heads than a tile": {"num_heads": 80, "num_kv_heads": 1, "batch": 1},
    "uneven widths": {"head_dim": 112, "v_head_dim": 80},
    "window, cap and sinks": {**PREFILL, "mask": sliding_window(40), "logit_cap": 5.0, "has_sinks": True},
    "window to both sides": {**PREFILL, "mask": MaskSpec(window=(30, 5))},
    "chunk": {**PREFILL, "mask": MaskSpec(causal=True, chunk=32)},
    "prefix": {**PREFILL, "mask": MaskSpec(causal=True, prefix=True)},
    "prefix alone": {"mask": MaskSpec(prefix=True)},
    "segments or a window": {**PREFILL, "mask": MaskSpec(segments=True) & (sliding_window(9) | MaskSpec(chunk=64))},
    "nothing hidden": {"mask": FULL, "has_sinks": True, "dtype": "bfloat16"},
    "bias of each head": {"bias_shape": (1, 4, 1, 192)},
    "slopes of each head": {**PREFILL, "has_alibi": True, "mask": sliding_window(50)},
    "slopes over a ring": {**EXPLICIT, "has_alibi": True},
    "bias of each query": {**PREFILL, "bias_shape": (2, 1, 9, 1)},
    "a ring of keys": {**EXPLICIT, "mask": sliding_window(64)},
}
PAGED: dict[str, dict[str, Any]] = {
    "decode": {"page_size": 16},
    "pages larger than a step": {"page_size": 64, "dtype": "bfloat16", "num_heads": 8},
    "pages of one odd size": {"page_size": 12, "mask": sliding_window(50), "has_sinks": True, "logit_cap": 4.0},
    "prefill of rows": {**PREFILL, "page_size": 16, "bias_shape": (1, 4, 9, 192)},
    "ragged": RAGGED,
    "ragged, window and sinks": {**RAGGED, "mask": sliding_window(33), "has_sinks": True},
    "ragged, at given positions": {**RAGGED, "has_q_positions": True},
}
CASES = [
    *(pytest.param(Decode(), change, id=f"dense {name}") for name, change in DECODE.items()),
    *(pytest.param(Paged(), change, id=f"paged {name}") for name, change in PAGED.items()),
]


#: What decides these kernels' paths; lengths and heads as small as steps of 16 keys allow.
NARROW = {
    "mode": ("decode", "prefill"),
    "q_length": (1, 5, 18),
    "kv_length": (96, 131),
    "heads": ((4, 2), (6, 3), (8, 1), (2, 2)),
    "head_dims": ((32, 32), (48, 16), (64, 128)),
    "kv_lengths": (True, False),
}


class TestDecodeConforms(KernelConformance):
    narrow: ClassVar[Any] = {**NARROW, "page_size": (None,)}
    generated = 10

    def kernel(self) -> Kernel:
        return Decode()

    def problems(self) -> tuple[Any, ...]:
        return ()


class TestPagedConforms(KernelConformance):
    narrow: ClassVar[Any] = {**NARROW, "kv_lengths": (True,), "page_size": (16, 8, 24), "ragged_sequences": (None, 3)}
    generated = 10

    def kernel(self) -> Kernel:
        return Paged()

    def problems(self) -> tuple[Any, ...]:
        return ()


@pytest.mark.parametrize(("kernel", "change"), CASES)
def test_equals_the_reference(kernel, change):
    problem = dataclasses.replace(BASE, **change)
    (agreement,) = compare_with_reference(kernel, [problem], tolerances={"float32": 1e-5}, seed=1)
    assert agreement.refused == ""
    assert agreement.ok, agreement.describe()


def ragged_operands(problem: AttentionProblem, starts: list[int], lengths: list[int]) -> dict[str, Any]:
    operands = example_operands(problem, np.random.default_rng(0))
    return {**operands, "query_starts": np.array(starts, np.int32), "kv_lengths": np.array(lengths, np.int32)}


@pytest.mark.parametrize("starts", [[0, 1, 2, 3], [2, 2, 12, 17], [0, 20, 20, 20]])
def test_ragged_batches_mix_decoding_and_prefill(starts):
    problem = dataclasses.replace(BASE, **RAGGED)
    operands = ragged_operands(problem, starts, [64, 21, 192])
    ours = jax.jit(lambda x: Paged().apply(problem, x))(operands)
    right = ReferenceAttention().apply(problem, jax.tree.map(jnp.asarray, operands))
    np.testing.assert_allclose(ours, right, atol=2e-6)


def test_pages_past_a_length_are_never_read():
    problem = dataclasses.replace(BASE, page_size=16)
    operands = example_operands(problem, np.random.default_rng(0))
    operands["kv_lengths"] = np.array([20, 192], np.int32)
    operands["page_table"] = np.arange(24, dtype=np.int32).reshape(2, 12)
    clean = jax.jit(lambda x: Paged().apply(problem, x))(operands)
    unused = operands["page_table"][0, 2:]
    spoiled = {name: operands[name].copy() for name in ("k", "v", "page_table")}
    spoiled["k"][unused], spoiled["v"][unused] = np.nan, np.nan
    # What a page table holds past a sequence's end is anything, pages that don't exist included.
    spoiled["page_table"][0, 2:] = [-1, 2**30, *unused[2:]]
    again = jax.jit(lambda x: Paged().apply(problem, x))({**operands, **spoiled})
    np.testing.assert_array_equal(clean, again)


def test_a_sequence_without_keys_gets_zeros():
    problem = dataclasses.replace(BASE, mask=FULL)
    operands = example_operands(problem, np.random.default_rng(0))
    operands["kv_lengths"] = np.array([0, 50], np.int32)
    out, lse = jax.jit(lambda x: Decode().forward(problem, x))(operands)
    assert not np.any(out[0])
    assert np.all(np.isneginf(lse[0]))
    assert np.all(np.isfinite(lse[1]))


def test_halves_of_a_cache_merge_by_their_log_sum_exp():
    problem = dataclasses.replace(BASE, mask=FULL, has_kv_lengths=False)
    operands = example_operands(problem, np.random.default_rng(0))
    half = dataclasses.replace(problem, kv_length=96)

    @jax.jit
    def part(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return Decode().forward(half, {**operands, "k": k, "v": v})

    k, v = operands["k"], operands["v"]
    merged, lse = merge(*part(k[:, :96], v[:, :96]), *part(k[:, 96:], v[:, 96:]))
    whole, whole_lse = ReferenceAttention().forward(problem, jax.tree.map(jnp.asarray, operands))
    np.testing.assert_allclose(merged, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=2e-6)


def test_widths_are_cut_in_powers_of_two():
    assert pieces(192) == ((0, 128), (128, 64))
    assert pieces(80) == ((0, 64), (64, 16))


@pytest.mark.parametrize(("batch", "splits"), [(1, 33), (32, 2), (256, 1)])
def test_a_long_cache_is_shared_by_as_many_programs_as_fill_the_gpu(batch, splits):
    long = dataclasses.replace(BASE, batch=batch, kv_length=32768, num_heads=32, num_kv_heads=8)
    assert geometry_of(long, multiprocessors=132, keys=64, queries=1).splits == splits
    # A short one isn't: its merge would cost more.
    assert geometry_of(dataclasses.replace(long, kv_length=256), multiprocessors=132, keys=64, queries=1).splits == 1


REFUSALS = {
    "mode train: it has no gradient": (Decode(), {"mode": "train"}),
    "head widths [24] aren't multiples of 16": (Decode(), {"head_dim": 24}),
    "head widths [512]": (Decode(), {"v_head_dim": 512}),
    "dtype float64": (Decode(), {"dtype": "float64"}),
    "attention.gpu.paged reads those": (Decode(), {"page_size": 16}),
    "attention.gpu.decode reads those": (Paged(), {}),
    "a dense bias with ragged queries": (Paged(), {**RAGGED, "bias_shape": (1, 4, 20, 1)}),
    "segments inside any_of": (Paged(), {**RAGGED, "mask": MaskSpec(segments=True) | CAUSAL}),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    kernel, change = REFUSALS[reason]
    verdict = kernel.supports(dataclasses.replace(BASE, **change), None)
    assert not verdict
    assert reason in verdict.reason


def test_every_problem_of_cores_sweep_is_accepted_or_refused_with_a_reason():
    for problem in EXAMPLES.problems:
        verdicts = [kernel.supports(problem, None) for kernel in (Decode(), Paged())]
        assert all(verdict.ok or len(verdict.reason) > 10 for verdict in verdicts)
        assert any(verdicts) == (problem.mode != "train"), problem.describe()
