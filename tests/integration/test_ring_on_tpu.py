"""Context parallelism on a TPU: every part of keys that comes by is attended to by a fused kernel."""

import dataclasses

import jax.numpy as jnp
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.kernels.attention.problem import ATTENTION, AttentionProblem
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.selection import select
from kanawa_parallel.context.contiguous import Contiguous
from kanawa_parallel.context.looped import RingLoop

SHARD = AttentionProblem(
    batch=1,
    q_length=2048,
    kv_length=2048,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    v_head_dim=128,
    dtype=jnp.bfloat16.dtype.name,
    mask=CAUSAL,
    scale=0.1,
)
PACKED = MaskSpec(segments=True)
MASKS = {
    "causal": CAUSAL,
    "packed": CAUSAL & PACKED,
    "a window shorter than a shard": sliding_window(1024),
    "a packed window over two shards": sliding_window(3000) & PACKED,
    "chunks": MaskSpec(causal=True, chunk=1024),
    "prefix": MaskSpec(causal=True, prefix=True),
    "full": FULL,
}


@pytest.mark.parametrize("case", MASKS)
@pytest.mark.parametrize("balanced", [True, False])
def test_every_block_of_the_ring_gets_a_fused_tpu_kernel(case, balanced):
    way, problem = RingLoop(balanced=balanced), dataclasses.replace(SHARD, mask=MASKS[case])
    assert way.supports(problem, 4)
    blocks = way.blocks(problem, 4)
    assert len(blocks) > 1
    with use_plan(ExecutionPlan(platform="tpu", device_kind="TPU v5")):
        chosen = {role: select(ATTENTION, block).kernel for role, block in blocks.items()}
    assert all(kernel.fused and kernel.name.startswith("attention.tpu.") for kernel in chosen.values()), chosen


def test_blocks_of_unbalanced_rings_have_positions_as_operands():
    """So that the kernels above are those that take them; a mask known when compiling would need no such kernel."""
    blocks = Contiguous(dataclasses.replace(SHARD, mask=sliding_window(1024)), 4).blocks()
    assert blocks["other"].has_q_positions
    assert blocks["other"].has_kv_positions
