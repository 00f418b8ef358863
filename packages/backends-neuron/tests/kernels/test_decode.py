"""The NKI attention over a cache against the reference, in the interpreter."""

import dataclasses

import numpy as np
import pytest
from broken_rest import broken_rest
from kanawa.kernels.masks import MaskSpec, sliding_window
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_neuron.kernels.attention.serving import NkiDecodeAttention, Steps, steps_of
from kanawa_kernel_tools.examples.attention import BASE, example_operands

CACHE = dataclasses.replace(BASE, mode="decode", q_length=1, has_kv_lengths=True)
#: Steps of several pages, prompts that take several tiles, windows that skip a row's first steps.
CHANGES = (
    {},
    {"kv_length": 1024, "mask": sliding_window(100), "page_size": 64},
    {"kv_length": 96, "page_size": 8, "has_sinks": True, "logit_cap": 3.0},
    {"mode": "prefill", "q_length": 150, "kv_length": 600, "dtype": "bfloat16"},
    {"mode": "prefill", "q_length": 3, "mask": MaskSpec(causal=True, chunk=50), "has_q_positions": True},
)


class TestDecode(KernelConformance):
    generated = 6
    fewest_accepted = 6
    narrow = {"mode": ("decode", "prefill"), "q_length": (1, 5, 40), "kv_length": (128, 256, 320)}

    def kernel(self):
        return NkiDecodeAttention()

    def problems(self):
        return tuple(dataclasses.replace(CACHE, **change) for change in CHANGES)


@pytest.mark.parametrize("change", [{}, {"page_size": 16}, {"kv_length": 1024, "page_size": 64, "dtype": "bfloat16"}])
def test_a_nan_behind_a_rows_end_reaches_nobody(change):
    """What a sequence that broke leaves in a page is weighed with zero by the next one that gets the page."""
    problem = dataclasses.replace(CACHE, **change)
    operands = example_operands(problem, np.random.default_rng(0))
    poisoned = broken_rest(problem, operands)
    clean, broken = (
        np.asarray(NkiDecodeAttention().apply(problem, operands | pools), np.float32) for pools in ({}, poisoned)
    )
    np.testing.assert_array_equal(broken, clean)


REFUSALS = {
    "mode train; the kernel has no backward": {"mode": "train"},
    "no kv_lengths": {"has_kv_lengths": False},
    "ragged queries": {"page_size": 16, "ragged_sequences": 3},
    "mask has segments": {"mask": MaskSpec(causal=True, segments=True)},
    "dense bias": {"bias_shape": (1, 4, 1, 256)},
    "page_size 1024; needs 8 to 512": {"page_size": 1024, "kv_length": 2048},
    "kv_length 1031 has no divisor between 8 and 512": {"kv_length": 1031},
    "1024 tiles of queries and key heads; 512 at most": {"q_length": 32768},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = NkiDecodeAttention().supports(dataclasses.replace(CACHE, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "change, steps",
    [
        ({"kv_length": 4096}, Steps(512, 1, 8)),
        ({"kv_length": 600}, Steps(300, 1, 2)),
        ({"kv_length": 4096, "page_size": 16}, Steps(16, 32, 8)),
        ({"kv_length": 272, "page_size": 16}, Steps(16, 17, 1)),
        ({"kv_length": 4096, "page_size": 256}, Steps(256, 2, 8)),
    ],
)
def test_steps_are_whole_pages_and_at_most_a_block(change, steps):
    assert steps_of(dataclasses.replace(CACHE, **change)) == steps
