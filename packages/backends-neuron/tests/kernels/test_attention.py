"""The NKI attention kernel against the reference, in the interpreter."""

import dataclasses

import pytest
from kanawa.kernels.attention.examples import BASE
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_neuron.kernels.attention.training import NkiAttention

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
    "take 288 KiB of a partition's SBUF; 144 at most": {"kv_length": 16384, "q_length": 16384, "head_dim": 128},
    "a program of": {"kv_length": 32768, "q_length": 32768, "mode": "prefill", "dtype": "bfloat16"},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = NkiAttention().supports(dataclasses.replace(BASE, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason
