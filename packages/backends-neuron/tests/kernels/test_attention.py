"""The NKI attention kernel against the reference, in the interpreter."""

import dataclasses

import numpy as np
import pytest
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.testing.compare import compare_with_reference
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_neuron.kernels.attention import training
from kanawa_backends_neuron.kernels.attention.training import NkiAttention, parts_of, row_bytes
from kanawa_kernel_tools.examples.attention import BASE, EXAMPLES, example_operands

SMALL = dataclasses.replace(BASE, batch=1, num_heads=2, num_kv_heads=1)
#: Beside the operation's own sweep: lengths that aren't whole tiles, several blocks of keys, masks that meet.
CHANGES = (
    {"q_length": 200, "kv_length": 200},
    {"q_length": 100, "kv_length": 330, "mask": FULL},
    {"q_length": 640, "kv_length": 640, "mask": sliding_window(70)},
    {"q_length": 640, "kv_length": 640, "mask": MaskSpec(window=(10, 20), segments=True), "num_kv_heads": 2},
    {"q_length": 300, "kv_length": 300, "mask": MaskSpec(causal=True, window=(100, None), chunk=70)},
    {"mask": MaskSpec(prefix=True)},
    {"mask": CAUSAL, "has_q_positions": True, "q_length": 40},
    {"head_dim": 192, "v_head_dim": 80, "dtype": "bfloat16", "logit_cap": 3.0, "has_sinks": True},
)


class TestAttention(KernelConformance):
    generated = 6
    fewest_accepted = 6
    narrow = {"mode": ("train", "prefill"), "q_length": (128, 64, 200), "kv_length": (None, 256)}

    def kernel(self):
        return NkiAttention()

    def problems(self):
        return tuple(dataclasses.replace(SMALL, **change) for change in CHANGES)


REFUSALS = {
    "keys come from a cache; attention.neuron.decode takes it": {"has_kv_lengths": True, "mode": "decode"},
    "dense bias": {"bias_shape": (1, 4, 256, 256)},
    "kv_positions are an operand": {"has_kv_positions": True, "has_q_positions": True},
    "mask has predicates": {"mask": MaskSpec(predicates=("even",))},
    "prefix beside a window": {"mask": MaskSpec(causal=True, prefix=True, window=(5, None))},
    "dtype float64": {"dtype": "float64"},
    "head width 320; 256 at most": {"head_dim": 320},
    "1048576 queries and 1048576 keys would take more than 64 programs": {"kv_length": 2**20, "q_length": 2**20},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = NkiAttention().supports(dataclasses.replace(BASE, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


#: Rows longer than what fits: cut at 512 and 1,024, with masks that leave some of the pieces out.
LONG = (
    {},
    {"mask": sliding_window(200), "has_sinks": True, "dtype": "bfloat16"},
    {"mask": MaskSpec(causal=True, chunk=300, segments=True)},
    {"mask": FULL, "q_length": 100, "mode": "prefill"},
)


@pytest.mark.parametrize("change", LONG, ids=lambda x: str(x.get("mask", "causal"))[:30])
def test_long_rows_are_cut_and_put_together(change, monkeypatch):
    problem = dataclasses.replace(
        SMALL, **{"q_length": 1100, "kv_length": 1100, "head_dim": 16, "v_head_dim": 16} | change
    )
    monkeypatch.setattr(training, "ROW_BYTES", row_bytes(problem, 512))
    parts_of.cache_clear()
    try:
        assert len(parts_of(problem)) == {1100: 6, 100: 3}[problem.q_length] - (problem.mask.window is not None)
        (agreement,) = compare_with_reference(NkiAttention(), [problem])
    finally:
        parts_of.cache_clear()
    assert agreement.ok, agreement.describe()
    assert not agreement.refused


def test_ids_that_fp32_would_take_for_one_another_are_told_apart():
    """Engines compare in fp32, which has 24 bits: 2**24 and 2**24 + 1 are one number there."""
    problem = dataclasses.replace(SMALL, q_length=128, kv_length=128, mask=MaskSpec(causal=True, segments=True))
    operands = example_operands(problem, np.random.default_rng(0))
    ids = np.repeat(np.int32([2**24, 2**24 + 1, -(2**31), 2**31 - 1]), 32)[None]
    operands |= {"q_segment_ids": ids, "kv_segment_ids": ids}
    out, _ = NkiAttention().forward(problem, operands)
    right, _ = EXAMPLES.reference.forward(problem, operands)
    np.testing.assert_allclose(out, right, atol=1e-5)


def test_what_a_long_row_takes():
    long = dataclasses.replace(SMALL, q_length=32768, kv_length=32768, head_dim=128, v_head_dim=128, dtype="bfloat16")
    parts = parts_of(long)
    assert NkiAttention().supports(long, None)
    assert all(row_bytes(long, part.k_end - part.k_first) <= training.ROW_BYTES for part in parts)
    # Every key that causality shows a query is in one of its parts.
    assert all(part.k_first < part.q_end for part in parts)
    assert {part.q_end for part in parts} >= {32768}
