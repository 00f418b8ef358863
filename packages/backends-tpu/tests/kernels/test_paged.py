"""The paged kernel in Pallas's interpreter against core's reference, and what it refuses."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels.attention.examples import example_operands
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa_backends_tpu.kernels.attention.paged import PagedAttention


class Interpreted(PagedAttention):
    """The same kernel without a TPU."""

    interpret: ClassVar[bool] = True


PLAIN = AttentionProblem(
    batch=3,
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
PREFILL = {"mode": "prefill", "q_length": 24}
RAGGED = {"mode": "prefill", "batch": 1, "q_length": 70, "ragged_sequences": 4}
NARROW = {"head_dim": 64, "v_head_dim": 64, "page_size": 128, "kv_length": 384}
CASES = {
    "decode, keys in lanes": NARROW,
    "prefill, keys in lanes": {**PREFILL, **NARROW, "dtype": "bfloat16"},
    "decode, three key heads": {"num_heads": 6, "num_kv_heads": 3},
    "mixed, three key heads": {**RAGGED, "num_heads": 6, "num_kv_heads": 3},
    "decode": {},
    "decode, every head its own keys": {"num_kv_heads": 4},
    "decode, one key head": {"num_kv_heads": 1},
    "decode, six heads": {"num_heads": 6},
    "decode, bfloat16": {"dtype": "bfloat16", "scale": 0.1},
    "decode, window, sinks, cap": {"mask": sliding_window(20), "has_sinks": True, "logit_cap": 5.0},
    "decode, chunk": {"mask": MaskSpec(causal=True, chunk=24)},
    "decode, wide": {"head_dim": 256, "v_head_dim": 256, "scale": 0.0625},
    "dense": DENSE,
    "dense, one key head": {**DENSE, "num_kv_heads": 1},
    "dense, bfloat16": {**DENSE, "dtype": "bfloat16"},
    "prefill": PREFILL,
    "prefill, not causal": {**PREFILL, "mask": FULL},
    "prefill, two-sided window": {**PREFILL, "mask": MaskSpec(window=(9, 4))},
    "prefill, chunk, sinks": {**PREFILL, "mask": MaskSpec(causal=True, chunk=32), "has_sinks": True},
    "prefill, bfloat16, narrow values": {**PREFILL, "dtype": "bfloat16", "head_dim": 256},
    "prefill, dense": {**PREFILL, **DENSE},
    "prefill, dense, one bfloat16 head": {**PREFILL, **DENSE, "num_kv_heads": 1, "dtype": "bfloat16"},
    "mixed": RAGGED,
    "mixed, window, sinks, bfloat16": {**RAGGED, "mask": sliding_window(20), "has_sinks": True, "dtype": "bfloat16"},
    "mixed, eight key heads": {**RAGGED, "num_heads": 24, "num_kv_heads": 8},
}


def agrees(problem: AttentionProblem, operands: dict[str, Any]) -> None:
    assert Interpreted().supports(problem, None)
    both = (jax.jit(lambda o, kernel=kernel: kernel.apply(problem, o)) for kernel in (Interpreted(), ReferenceAttention()))
    ours, right = (np.asarray(run(operands), np.float32) for run in both)
    limit = 1e-5 if problem.dtype == "float32" else 2e-2
    assert np.abs(ours - right).max() <= limit * max(1.0, np.abs(right).max())


def operands_of(problem: AttentionProblem) -> dict[str, Any]:
    return {n: jnp.asarray(x) for n, x in example_operands(problem, np.random.default_rng(1)).items()}


@pytest.mark.parametrize("case", CASES)
def test_against_the_reference(case):
    problem = dataclasses.replace(PLAIN, **CASES[case])
    agrees(problem, operands_of(problem))
