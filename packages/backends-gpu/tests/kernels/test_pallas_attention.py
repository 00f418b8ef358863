"""Pallas attention in the interpreter against core's reference, outputs and gradients; what it never visits; refusals.

Tiles are small, so that a few rows make several blocks of either side, the last one short.
"""

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
from kanawa.kernels.operation import Tuning
from kanawa.testing.compare import compare_with_reference
from kanawa_backends_gpu.kernels.attention.flash.sizes import size_of
from kanawa_backends_gpu.kernels.attention.flash.visits import block_map, transposed, visits
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention
from kanawa_kernel_tools.examples.attention import EXAMPLES, example_operands
from named_masks import named_masks

SMALL: Tuning = (
    *(("forward_queries", 32), ("forward_keys", 16)),
    *(("queries_queries", 16), ("queries_keys", 32)),
    *(("keys_queries", 16), ("keys_keys", 32)),
)


class Interpreted(PallasAttention):
    """The same kernel without a GPU."""

    interpret: ClassVar[bool] = True
    tuning = SMALL


KERNEL, REFERENCE = Interpreted(), ReferenceAttention()
BASE = AttentionProblem(
    batch=2, q_length=72, kv_length=72, num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype="float32",
    mask=CAUSAL, scale=0.2,
)  # fmt: skip
PACKED = MaskSpec(causal=True, segments=True)
BY_POSITION = {"has_q_positions": True, "has_kv_positions": True}
PREFILL: dict[str, Any] = {"mode": "prefill", "q_length": 64, "kv_length": 100, "has_kv_lengths": True}
CASES: dict[str, dict[str, Any]] = {
    "packed, window, sinks, cap, head of three pieces": {
        "mask": sliding_window(20) & PACKED, "has_sinks": True, "logit_cap": 3.0, "head_dim": 112, "v_head_dim": 48,
    },
    "packed, bfloat16, a bias of each head": {"mask": PACKED, "dtype": "bfloat16", "bias_shape": (1, 4, 72, 72)},
    "prefix, fewer queries at given positions": {
        "mask": MaskSpec(causal=True, prefix=True), "q_length": 40, "has_q_positions": True, "num_kv_heads": 1,
    },
    "any of, predicates": {"mask": MaskSpec(any_of=((sliding_window(9), MaskSpec(predicates=("striped",))),))},
    "chunk, bias of keys, odd width": {
        "mask": MaskSpec(causal=True, chunk=24), "bias_shape": (2, 1, 1, 72), "head_dim": 40,
    },
    "ALiBi and dropout, packed": {"mask": PACKED, "has_alibi": True, "dropout_rate": 0.3, "num_kv_heads": 1},
    "prefill from a cache": {**PREFILL, "mask": sliding_window(30), "has_sinks": True, "dtype": "bfloat16"},
}  # fmt: skip
#: One feature at a time, and pairs that meet less often.
MORE: dict[str, dict[str, Any]] = {
    "full": {"mask": FULL, "num_kv_heads": 4},
    "full, fewer queries than a tile": {"mask": FULL, "q_length": 9, "kv_length": 64},
    "causal": {"num_heads": 6, "num_kv_heads": 2},
    "float16": {"dtype": "float16"},
    "window to both sides": {"mask": MaskSpec(window=(10, 5)), "has_sinks": True},
    "window ahead": {"mask": MaskSpec(window=(None, 5))},
    "rows that see nothing": {"mask": sliding_window(5), "q_length": 72, "kv_length": 40, "has_q_positions": True},
    "prefix alone": {"mask": MaskSpec(prefix=True), "has_sinks": True},
    "prefix and packed": {"mask": MaskSpec(causal=True, prefix=True, segments=True)},
    "segments of any order": {"mask": MaskSpec(segments=True)},
    "segments or a window": {"mask": MaskSpec(any_of=((MaskSpec(segments=True), sliding_window(9)),))},
    "predicate": {"mask": CAUSAL & MaskSpec(predicates=("striped",)), "logit_cap": 2.0},
    "packed predicate": {"mask": PACKED & MaskSpec(predicates=("striped",)), "has_sinks": True},
    # Without sinks a bias that all keys of a query share changes nothing, and its gradient is rounding alone.
    "bias of each row": {"bias_shape": (2, 1, 72, 1), "mask": FULL, "has_sinks": True},
    "bias of all": {"bias_shape": (1, 1, 1, 1), "mask": sliding_window(20), "has_sinks": True},
    "bias whole, cap": {"bias_shape": (2, 4, 72, 72), "logit_cap": 2.0, "mask": PACKED},
    "dropout, bias of each head, sinks": {"dropout_rate": 0.2, "bias_shape": (1, 4, 1, 72), "has_sinks": True},
    "ALiBi at given positions": {**BY_POSITION, "has_alibi": True, "mask": FULL},
    "bias and predicate": {"bias_shape": (1, 4, 72, 72), "mask": CAUSAL & MaskSpec(predicates=("striped",))},
    "wide heads": {"head_dim": 256, "v_head_dim": 256, "batch": 1, "scale": 0.0625},
    "wide heads, packed, bfloat16": {"head_dim": 256, "v_head_dim": 256, "mask": PACKED, "dtype": "bfloat16"},
    "wide heads, sinks and window": {"head_dim": 256, "v_head_dim": 256, "mask": sliding_window(20), "has_sinks": True},
    "keys at given places": {**BY_POSITION, "mask": sliding_window(20)},
    "prefill, whole": {**PREFILL},
    "prefill, not causal": {**PREFILL, "mask": FULL},
    "prefill, no lengths": {"mode": "prefill", "mask": PACKED},
}  # fmt: skip
SWEEP = [problem for problem in EXAMPLES.problems if not problem.paged]


def striped(q, k):
    """A predicate, for the catalog: keys of the query's own stripe of 16, and every fifth one."""
    return (q // 16 == k // 16) | (k % 5 == 0)


def gathers(q, k):
    """A predicate that no kernel can compute."""
    return jnp.take(jnp.arange(200), q) >= k


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Shapes that only rank promotion fits together are errors, as wherever a user's tests are strict."""
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(autouse=True)
def _catalog():
    with named_masks(striped=striped, gathers=gathers):
        yield


def agree(kernel: Any, problem: AttentionProblem) -> None:
    (agreement,) = compare_with_reference(kernel, [problem])
    assert not agreement.refused
    assert agreement.ok, agreement.describe()


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case):
    agree(KERNEL, dataclasses.replace(BASE, **CASES[case]))


@pytest.mark.nightly
@pytest.mark.parametrize("case", MORE)
def test_equals_the_reference_in_every_corner(case):
    agree(KERNEL, dataclasses.replace(BASE, **MORE[case]))


class OwnTiles(PallasAttention):
    """With the tiles that a GPU would be given."""

    interpret: ClassVar[bool] = True


@pytest.mark.nightly
@pytest.mark.parametrize("problem", SWEEP, ids=AttentionProblem.describe)
def test_equals_the_reference_over_cores_sweep(problem):
    kernel = OwnTiles()
    if kernel.supports(problem, None):
        agree(kernel, problem)
    else:
        assert problem.mode == "decode"


def test_parts_merge_by_log_sum_exp_as_ring_attention_does():
    """Forward over two halves of the keys, merged; backward of each half with the whole's log-sum-exp."""
    problem = dataclasses.replace(BASE, mask=PACKED, **BY_POSITION)
    operands = {name: jnp.asarray(x) for name, x in example_operands(problem, np.random.default_rng(0)).items()}
    dout = jax.random.normal(jax.random.key(0), operands["q"].shape)
    half = dataclasses.replace(problem, kv_length=36)
    by_key = {"k": 1, "v": 1, "kv_positions": 1, "kv_segment_ids": 1}

    def part(index: int) -> dict[str, jax.Array]:
        cut = {n: jax.lax.slice_in_dim(operands[n], 36 * index, 36 * (index + 1), axis=a) for n, a in by_key.items()}
        return {**operands, **cut}

    @jax.jit
    def halves():
        (out_a, lse_a), (out_b, lse_b) = (KERNEL.forward(half, part(i)) for i in range(2))
        out, lse = merge(out_a, lse_a, out_b, lse_b)
        return out, lse, [KERNEL.backward(half, part(i), out, lse, dout) for i in range(2)]

    @jax.jit
    def whole():
        out, lse = REFERENCE.forward(problem, operands)
        return out, lse, REFERENCE.backward(problem, operands, out, lse, dout)

    (out, lse, (a, b)), (right, right_lse, grads) = halves(), whole()
    real = np.asarray(operands["q_segment_ids"] != 0)
    np.testing.assert_allclose(out[real], right[real], atol=1e-5)
    np.testing.assert_allclose(lse.swapaxes(1, 2)[real], right_lse.swapaxes(1, 2)[real], atol=1e-5)
    np.testing.assert_allclose(a["q"] + b["q"], grads["q"], atol=2e-5)
    for name in "kv":
        np.testing.assert_allclose(np.concatenate([a[name], b[name]], 1), grads[name], atol=2e-5)


MASKS = {
    "causal": CAUSAL,
    "window": sliding_window(20),
    "chunk": MaskSpec(causal=True, chunk=24),
    "packed": PACKED,
    "prefix": MaskSpec(causal=True, prefix=True),
    "predicate": CAUSAL & MaskSpec(predicates=("striped",)),
    "any of": MaskSpec(any_of=((sliding_window(9), MaskSpec(chunk=16)),)),
}


@pytest.mark.parametrize("by_keys", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_visits_hold_every_block_with_a_score_and_mark_only_whole_ones_as_whole(mask, by_keys):
    problem = dataclasses.replace(BASE, mask=MASKS[mask], kv_length=72)
    operands = example_operands(problem, np.random.default_rng(3))
    exact = np.asarray(
        problem.mask.allowed(
            *(np.arange(72)[None],) * 2,
            operands.get("q_segment_ids"),
            operands.get("kv_segment_ids"),
            operands.get("prefix_lengths"),
        )
    )
    padded = np.pad(exact, ((0, 0), (0, 8), (0, 8))).reshape(exact.shape[0], 5, 16, 5, 16)
    some, every = padded.any((2, 4)), padded.all((2, 4))
    blocks = block_map(problem, operands, 16, 16)
    if by_keys:
        some, every, blocks = some.swapaxes(1, 2), every.swapaxes(1, 2), transposed(blocks)
    visited = visits(blocks, problem.mask)
    bounds = np.broadcast_to(np.asarray(visited.bounds), (exact.shape[0], 5, 4))
    for row, owner in np.ndindex(exact.shape[0], 5):
        first, whole, whole_end, end = bounds[row, owner]
        order = (
            np.arange(5)
            if visited.order is None
            else np.asarray(visited.order)[0 if len(visited.order) == 1 else row, owner]
        )
        assert set(np.flatnonzero(some[row, owner])) <= set(order[first:end])
        assert every[row, owner, order[whole:whole_end]].all()
        assert first <= whole <= whole_end <= end
    visited_blocks = (bounds[..., 3] - bounds[..., 0]).sum()
    assert visited_blocks <= 1.35 * some.sum(), "blocks are visited that the mask empties"


def test_masks_known_when_compiling_need_no_phase_that_is_never_entered():
    full, causal = (dataclasses.replace(BASE, mask=mask, q_length=64, kv_length=64) for mask in (FULL, CAUSAL))
    assert visits(block_map(full, {}, 16, 16), FULL).phases == (False, True, False)
    blocks = block_map(causal, {}, 16, 16)
    assert visits(blocks, CAUSAL).phases == (False, True, True)
    assert visits(transposed(blocks), CAUSAL).phases == (True, True, False)


REFUSALS = {
    "in pages": {"page_size": 16},
    "1 queries leave a tile": {"mode": "decode", "q_length": 1, "has_kv_lengths": True},
    "dtype float64": {"dtype": "float64"},
    "heads of 320": {"head_dim": 320},
    "predicate 'gathers'": {"mask": MaskSpec(any_of=((CAUSAL, MaskSpec(predicates=("gathers",))),))},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = KERNEL.supports(dataclasses.replace(BASE, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


def test_every_tuning_is_taken():
    for tuning in KERNEL.tunings(BASE, None):
        kernel = Interpreted()
        kernel.tuning = tuning
        ((name, number),) = tuning
        part, _, field = name.partition("_")
        assert getattr(size_of(kernel, dataclasses.replace(BASE, q_length=4096, kv_length=4096), part), field) == number
