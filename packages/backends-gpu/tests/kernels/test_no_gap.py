"""No corner of packed rows, wide heads and sinks falls back to the reference on a GPU."""

import itertools

import pytest
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa_backends_gpu.device import B200, H100
from kanawa_backends_gpu.kernels.attention.cached import DecodeAttention, PagedAttention
from kanawa_backends_gpu.kernels.attention.cudnn import CudnnAttention
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention

KERNELS = (CudnnAttention(), PallasAttention(), DecodeAttention(), PagedAttention())
MASKS = (CAUSAL, FULL, sliding_window(512), MaskSpec(causal=True, prefix=True), MaskSpec(causal=True, chunk=256))
MODES = {
    "train": {"mode": "train", "q_length": 2048},
    "train, odd length": {"mode": "train", "q_length": 1021, "kv_length": 1021},
    "prefill": {"mode": "prefill", "q_length": 512, "has_kv_lengths": True},
    "few queries": {"mode": "prefill", "q_length": 4, "has_kv_lengths": True},
    "decode": {"mode": "decode", "q_length": 1, "has_kv_lengths": True},
    "decode, paged": {"mode": "decode", "q_length": 1, "has_kv_lengths": True, "page_size": 64},
}


@pytest.mark.parametrize("device", [H100, B200], ids=lambda device: device.name)
@pytest.mark.parametrize("mode", MODES)
def test_every_corner_has_a_fused_kernel(mode, device):
    for mask, packed, width, sinks, dtype in itertools.product(
        MASKS, (False, True), (64, 128, 256), (False, True), ("bfloat16", "float32")
    ):
        sizes = {"batch": 2, "kv_length": 2048, "num_heads": 8, "num_kv_heads": 2, **MODES[mode]}
        if packed and "has_kv_lengths" in sizes:
            continue
        problem = AttentionProblem(
            **sizes,
            head_dim=width,
            v_head_dim=width,
            dtype=dtype,
            mask=mask & MaskSpec(segments=True) if packed else mask,
            scale=width**-0.5,
            has_sinks=sinks,
        )
        verdicts = {kernel.name: kernel.verdict(problem, device) for kernel in KERNELS}
        reasons = {name: verdict.reason for name, verdict in verdicts.items()}
        assert any(verdicts.values()), f"{problem.describe()}: {reasons}"
