"""Attention for training compiled for GPUs that aren't there: what the assembler makes of each Pallas kernel.

Slow, and needs the CUDA wheels: KANAWA_AOT=1 python -m pytest packages/backends-gpu/tests/aot/test_attention.py
"""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.composition.target import parse_target
from kanawa.kernels import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel
from kanawa.plugins import ScheduleRequest
from kanawa_backends_gpu.kernels.attention.cudnn_packed import PackedCudnnAttention
from kanawa_backends_gpu.kernels.attention.pallas import PallasAttention
from kanawa_backends_gpu.plugin import BACKEND
from kanawa_backends_gpu.schedule import kernel_schedules
from kanawa_backends_gpu.topology import missing_wheels
from kanawa_kernel_tools.schedules.compiled import operand_shapes

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.skipif(
        bool(missing_wheels()),
        reason='no GPU compiler: pip install "kanawa-backends-gpu[compile]"',
    ),
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
]

PACKED = MaskSpec(causal=True, segments=True)
#: A layer of an 8B Llama.
LAYER = AttentionProblem(
    batch=8, q_length=4096, kv_length=4096, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128,
    dtype="bfloat16", mask=CAUSAL, scale=128**-0.5,
)  # fmt: skip
WIDE = {"head_dim": 256, "v_head_dim": 256}
NARROW = {"head_dim": 64, "v_head_dim": 64}
CASES: dict[str, dict[str, Any]] = {
    "causal, 64": NARROW,
    "causal, 128": {},
    "causal, 256": WIDE,
    "packed, 64": {**NARROW, "mask": PACKED},
    "packed, 128": {"mask": PACKED},
    "packed, 256": {**WIDE, "mask": PACKED},
    "sinks and window, 64": {**NARROW, "mask": sliding_window(128), "has_sinks": True},
    "packed, sinks, window, 256": {**WIDE, "mask": sliding_window(1024) & PACKED, "has_sinks": True},
    "cap, 256": {**WIDE, "logit_cap": 50.0, "mask": sliding_window(4096)},
    "bias that rows and heads share, 128": {"bias_shape": (1, 1, 4096, 4096), "mask": FULL},
    "predicate, 128": {"mask": CAUSAL & MaskSpec(predicates=("dilated",))},
    "prefix, keys and values of two widths": {"mask": MaskSpec(causal=True, prefix=True), "head_dim": 192},
    "ALiBi and dropout, 64": {**NARROW, "has_alibi": True, "dropout_rate": 0.1},
    "fp32, lengths that don't divide": {"dtype": "float32", "q_length": 1000, "kv_length": 1000},
}
#: Bytes that a thread may keep in local memory: a quarter of its registers. B200 at 256 comes nearest.
MOST_SPILT = 256


def lowered_for(selector: str, function: Any, *arguments: Any) -> jax.stages.Lowered:
    mesh = Mesh(np.array(BACKEND.kanawa_topology(parse_target(selector))), ("data",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())
    with jax.set_mesh(mesh), use_plan(ExecutionPlan()):
        return jax.jit(function, in_shardings=whole).trace(*arguments).lower(lowering_platforms=("cuda",))


def both_directions(selector: str, kernel: Kernel, problem: AttentionProblem) -> jax.stages.Lowered:
    operands = operand_shapes("attention", problem)

    def gradients(operands: dict[str, jax.Array], dout: jax.Array) -> dict[str, jax.Array]:
        out, lse = kernel.forward(problem, operands)
        return kernel.backward(problem, operands, out, lse, dout)

    shape = (problem.batch, problem.q_length, problem.num_heads, problem.v_head_dim)
    return lowered_for(selector, gradients, operands, jax.ShapeDtypeStruct(shape, problem.dtype))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("selector", ["h100", "b200"])
def test_training_compiles_and_keeps_to_registers(selector, case):
    problem = dataclasses.replace(LAYER, **CASES[case])
    assert PallasAttention().verdict(problem, None)
    target = parse_target(selector)
    request = ScheduleRequest(kernel=PallasAttention.name, problem=problem, target=target, differentiated=True)
    records = kernel_schedules(request)
    parts = ["forward", "queries", *["bias"] * problem.has_bias, "keys"]
    assert {record.call.removeprefix("flash_attention_") for record in records} == set(parts)
    for record in records:
        assert (record.spills or 0) * 4 <= MOST_SPILT, record
        # A block that asks for more shared memory than there is is only refused when it is launched.
        assert (record.occupancy or 0) > 0, record
    # Nothing of the size of the scores is ever written.
    scores = problem.batch * problem.num_heads * problem.q_length * problem.kv_length * 2
    memory = both_directions(selector, PallasAttention(), problem).compile().memory_analysis()
    assert memory.temp_size_in_bytes < scores / 8


@pytest.mark.parametrize("selector", ["h100", "b200"])
def test_packed_rows_for_cudnn_hold_both_ways(selector):
    """The calls are placed; cuDNN itself is asked on a device only (it would take a width of 512 here)."""
    problem = dataclasses.replace(LAYER, mask=PACKED)
    program = both_directions(selector, PackedCudnnAttention(), problem).compile().as_text()
    assert program.count('custom_call_target="__cudnn$fmha') == 2
    assert program.count("flash_attention_") >= 3


CHOSEN = {
    "packed": ({"head_dim": 128}, {"segments": True}),
    "wide": ({"head_dim": 256}, {}),
    "sinks": ({"head_dim": 64}, {"sinks": True}),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_a_plain_call_gets_it(case):
    """Packed rows, wide heads and sinks, asked for as a model does."""
    shape, extra = CHOSEN[case]
    q = jax.ShapeDtypeStruct((2, 1024, 8, shape["head_dim"]), jnp.bfloat16)
    kv = jax.ShapeDtypeStruct((2, 1024, 2, shape["head_dim"]), jnp.bfloat16)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, sinks: jax.Array) -> jax.Array:
        given = {"q_segment_ids": ids} if "segments" in extra else {"sinks": sinks} if "sinks" in extra else {}
        return jnp.sum(attention(q, k, v, **given).astype(jnp.float32))

    rest = jax.ShapeDtypeStruct((2, 1024), jnp.int32), jax.ShapeDtypeStruct((8,), jnp.bfloat16)
    program = lowered_for("h100", jax.grad(loss, argnums=(0, 1, 2)), q, kv, kv, *rest).compile().as_text()
    assert all(f"flash_attention_{part}" in program for part in ("forward", "queries", "keys"))
