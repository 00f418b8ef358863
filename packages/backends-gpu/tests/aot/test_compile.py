"""Compiles for GPUs that aren't there: kernels, options, a sharded step on one host and many.

Slow, and needs the CUDA wheels: KANAWA_AOT=1 python -m pytest packages/backends-gpu/tests/aot
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.composition.compiler_options import checked
from kanawa.composition.target import parse_target
from kanawa.kernels import CAUSAL, FULL, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.grouped_matmul import grouped_matmul
from kanawa_backends_gpu.plugin import BACKEND
from kanawa_backends_gpu.topology import missing_wheels

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.skipif(
        bool(missing_wheels()),
        reason='no GPU compiler: pip install "kanawa-backends-gpu[compile]"',
    ),
]


def mesh_for(selector: str, axis: str) -> Mesh:
    devices = BACKEND.kanawa_topology(parse_target(selector))
    assert len(devices) == parse_target(selector).jax_devices
    return Mesh(np.array(devices), (axis,), axis_types=(AxisType.Auto,))


def lowered(mesh: Mesh, function: Callable[..., Any], *shapes: Any, **options: Any) -> Any:
    """Lowers for the mesh's platform; the process's own is the CPU."""
    plan = ExecutionPlan(activation_rules=(("batch", mesh.axis_names),))
    with jax.set_mesh(mesh), use_plan(plan):
        traced = jax.jit(function, **options).trace(*shapes)
        return traced.lower(lowering_platforms=("cuda",))


ATTENTION = {
    "causal": (CAUSAL, (16, 2), 128),
    "full, narrow heads": (FULL, (8, 8), 64),
    "window": (sliding_window(256), (8, 2), 128),
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("selector", ["a100-8", "h100-8", "b200-8"])
def test_cudnn_forward_and_backward(selector, case):
    mask, (heads, kv_heads), width = ATTENTION[case]
    mesh = mesh_for(selector, "data")
    q = jax.ShapeDtypeStruct((8, 2048, heads, width), jnp.bfloat16)
    kv = jax.ShapeDtypeStruct((8, 2048, kv_heads, width), jnp.bfloat16)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attention(q, k, v, mask=mask).astype(jnp.float32))

    split = NamedSharding(mesh, PartitionSpec("data"))
    gradient = jax.grad(loss, argnums=(0, 1, 2))
    program = lowered(mesh, gradient, q, kv, kv, in_shardings=split).compile()
    text = program.as_text()
    assert text.count('custom_call_target="__cudnn$fmha') == 2  # forward, backward
    assert program.memory_analysis().temp_size_in_bytes < 2048 * 2048 * heads * 4


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("selector", ["a100", "h100", "b200"])
def test_grouped_matmul_and_its_gradients(selector):
    mesh = mesh_for(selector, "data")
    shapes = [
        jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16),
        jax.ShapeDtypeStruct((8, 1024, 1408), jnp.bfloat16),
        jax.ShapeDtypeStruct((8,), jnp.int32),
    ]

    def loss(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(grouped_matmul(lhs, rhs, sizes).astype(jnp.float32)))

    whole = NamedSharding(mesh, PartitionSpec())
    gradient = jax.grad(loss, argnums=(0, 1))
    program = lowered(mesh, gradient, *shapes, in_shardings=whole).compile()
    assert program.as_text().count("__gpu$xla.gpu.triton") == 3  # the product, and a gradient of each side
    assert program.memory_analysis().temp_size_in_bytes < 8 * 4096 * 1024 * 4


def fsdp_step(params: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    def loss(params: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(layer, x, params)[0].astype(jnp.float32))

    return params - 0.1 * jax.grad(loss)(params)


def lowered_step(mesh: Mesh) -> jax.stages.Lowered:
    params = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    return lowered(
        mesh,
        fsdp_step,
        jax.ShapeDtypeStruct((4, 2048, 2048), jnp.bfloat16),
        jax.ShapeDtypeStruct((64 * mesh.size, 2048), jnp.bfloat16),
        in_shardings=(params, rows),
        out_shardings=params,
        donate_argnums=0,
    )


@pytest.mark.parametrize("selector", ["h100", "a100-8", "a100_40gb-8", "h100-8", "h200-8", "b200-8", "h100-64"])
def test_a_sharded_step_with_the_recommended_options(selector):
    mesh = mesh_for(selector, "fsdp")
    options = BACKEND.kanawa_compiler_options(parse_target(selector).device, "train")
    program = lowered_step(mesh).compile(compiler_options=options)
    share = 4 * 2048 * 2048 * 2 // mesh.size
    assert share <= program.memory_analysis().argument_size_in_bytes < 2 * share + 2**20
    assert mesh.size == 1 or "all-gather-start" in program.as_text()


@pytest.mark.parametrize("purpose", ["train", "decode"])
def test_every_option_is_accepted(purpose):
    options = BACKEND.kanawa_compiler_options(parse_target("h100").device, purpose)
    mesh = mesh_for("h100-8", "data")
    split = NamedSharding(mesh, PartitionSpec("data"))
    shape = jax.ShapeDtypeStruct((1024,), jnp.float32)
    program = lowered(mesh, lambda x: 2 * x, shape, in_shardings=split)
    found = checked(
        {**options, "xla_gpu_no_such_option": True},
        lambda o: program.compile(compiler_options=o),
    )
    assert found.accepted == options
    assert list(found.refused) == ["xla_gpu_no_such_option"]
