"""Compiles for TPUs that aren't there, with libtpu: kernels, every option, a sharded step.

Slow, and needs the wheel libtpu: KANAWA_AOT=1 python -m pytest packages/backends-tpu/tests/aot
"""

import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.composition.compiler_options import checked
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa.kernels import CAUSAL, sliding_window
from kanawa.kernels.attention import attention
from kanawa.kernels.grouped_matmul import grouped_matmul
from kanawa_backends_tpu.plugin import BACKEND
from kanawa_backends_tpu.topology import missing_wheels

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.skipif(missing_wheels(), reason='no libtpu: pip install "kanawa-backends-tpu[tpu]"'),
    # libtpu's own start-up message about the environment that it doesn't find.
    pytest.mark.filterwarnings("default"),
]
MIB = 2**20


def mesh_for(selector: str, axis: str) -> Mesh:
    devices = BACKEND.kanawa_topology(parse_target(selector))
    assert len(devices) == parse_target(selector).jax_devices
    return Mesh(np.array(devices), (axis,), axis_types=(AxisType.Auto,))


def compiled(mesh: Mesh, function: Callable[..., Any], *shapes: Any, pins: tuple[Any, ...] = (), **options: Any) -> Any:
    """Compiles with the first dimension of every argument split over the mesh."""
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    plan = ExecutionPlan(activation_rules=(("batch", mesh.axis_names),), kernels=KernelPolicy(pins=pins))
    with jax.set_mesh(mesh), use_plan(plan):
        lowered = jax.jit(function, in_shardings=split).lower(*shapes)
    return lowered, lowered.compile(compiler_options=options)


ATTENTION = {
    "causal": (CAUSAL, (16, 2), 128, {}),
    "packed": (CAUSAL, (8, 8), 128, {"segments": True}),
    "window, narrow heads": (sliding_window(1024), (8, 2), 64, {}),
    "sinks and cap, wide heads": (CAUSAL, (4, 4), 256, {"sinks": True, "logit_cap": 30.0}),
}
#: The kernel and its calls: Splash's queries, and its keys and values, have their gradients apart.
ATTENTION_KERNELS = {
    "attention.tpu.flash": (2, ("v5e-4", "v5p-8", "v6e-4", "v7x-8")),
    "attention.tpu.splash": (3, ("v5p-8", "v6e-4")),
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize(
    ("kernel", "selector"), [(name, target) for name, (_, targets) in ATTENTION_KERNELS.items() for target in targets]
)
def test_attention_forward_and_backward(kernel, selector, case):
    mask, (heads, kv_heads), width, options = ATTENTION[case]
    rows = jax.ShapeDtypeStruct
    mesh = mesh_for(selector, "data")
    q = rows((mesh.size, 2048, heads, width), jnp.bfloat16)
    kv = rows((mesh.size, 2048, kv_heads, width), jnp.bfloat16)
    ids = rows((mesh.size, 2048), jnp.int32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        extra: dict[str, Any] = {"logit_cap": options.get("logit_cap")}
        if options.get("segments"):
            extra["q_segment_ids"] = ids
        if options.get("sinks"):
            extra["sinks"] = jnp.ones(heads)
        return jnp.sum(attention(q, k, v, mask=mask, **extra).astype(jnp.float32))

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    pins = (("attention", kernel),)
    lowered, program = compiled(mesh, gradient, q, kv, kv, ids, pins=pins)
    assert lowered.as_text().count("tpu_custom_call") == ATTENTION_KERNELS[kernel][0]
    scores = 2048 * 2048 * heads * 4
    assert program.memory_analysis().temp_size_in_bytes < scores


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("selector", ["v5p-8", "v6e-4"])
def test_megablox_forward_and_backward(selector, dtype):
    """Each device has rows and groups of its own, as expert parallelism leaves them."""
    mesh, split = mesh_for(selector, "data"), PartitionSpec("data")
    shapes = [
        jax.ShapeDtypeStruct((4 * 4096, 1024), dtype),
        jax.ShapeDtypeStruct((4 * 8, 1024, 1408), dtype),
        jax.ShapeDtypeStruct((4 * 8,), jnp.int32),
    ]

    def loss(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(grouped_matmul(lhs, rhs, sizes).astype(jnp.float32)))

    gradient = jax.shard_map(
        jax.grad(loss, argnums=(0, 1)),
        mesh=mesh,
        in_specs=split,
        out_specs=split,
        check_vma=False,
    )
    lowered, program = compiled(mesh, gradient, *shapes)
    assert lowered.as_text().count("tpu_custom_call") == 3  # forward, dlhs, drhs
    assert program.memory_analysis().temp_size_in_bytes < 256 * MIB


def fsdp_step(params: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    def loss(params: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(layer, x, params)[0].astype(jnp.float32))

    return params - 0.1 * jax.grad(loss)(params)


def lowered_step(mesh: Mesh) -> jax.stages.Lowered:
    params = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    step = jax.jit(fsdp_step, in_shardings=(params, rows), out_shardings=params, donate_argnums=0)
    return step.lower(
        jax.ShapeDtypeStruct((4, 2048, 2048), jnp.bfloat16),
        jax.ShapeDtypeStruct((64 * mesh.size, 2048), jnp.bfloat16),
    )


# v5p-128 is 4x4x4.
@pytest.mark.parametrize("selector", ["v4-16", "v5e-16x2", "v5p-128", "v6e-16", "v7x-16", "v5e-1"])
def test_a_sharded_step_with_the_recommended_options(selector):
    mesh = mesh_for(selector, "fsdp")
    options = BACKEND.kanawa_compiler_options(parse_target(selector).device, "train")
    program = lowered_step(mesh).compile(compiler_options=options)
    memory = program.memory_analysis()
    share = 4 * 2048 * 2048 * 2 // mesh.size
    assert share <= memory.argument_size_in_bytes < 2 * share + MIB


@pytest.mark.parametrize("selector", ["v4-8", "v5e-4", "v5p-8", "v6e-4", "v7x-8"])
@pytest.mark.parametrize("purpose", ["train", "decode"])
def test_every_option_is_accepted(selector, purpose):
    options = BACKEND.kanawa_compiler_options(parse_target(selector).device, purpose)
    split = NamedSharding(mesh_for(selector, "data"), PartitionSpec("data"))
    double = jax.jit(lambda x: 2 * x, in_shardings=split)
    lowered = double.lower(jax.ShapeDtypeStruct((1024,), jnp.float32))
    found = checked(
        {**options, "xla_tpu_no_such_option": True},
        lambda o: lowered.compile(compiler_options=o),
    )
    assert found.accepted == options
    assert list(found.refused) == ["xla_tpu_no_such_option"]


def test_a_topology_that_libtpu_lacks():
    import dataclasses

    target = dataclasses.replace(parse_target("v5e-16"), topology="3x5")
    with pytest.raises(TargetError, match="libtpu has no topology 'v5e:3x5'"):
        BACKEND.kanawa_topology(target)


def test_weights_are_gathered_while_matmuls_run(tmp_path):
    """On v5p libtpu 0.0.48 and newer gather where they stand, unless the SparseCores are asked to."""
    mesh = mesh_for("v5p-32", "fsdp")
    split, rows = NamedSharding(mesh, PartitionSpec(None, "fsdp")), NamedSharding(mesh, PartitionSpec("fsdp"))

    def layer(x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        # Several products, so that there is one to run while the next one's weight arrives.
        for weight in weights:
            whole = jax.lax.with_sharding_constraint(weight, NamedSharding(mesh, PartitionSpec()))
            x = jnp.tanh(x @ whole)
        return x, None

    forward = jax.jit(lambda weights, x: jax.lax.scan(layer, x, weights)[0], in_shardings=((split,) * 3, rows))
    weights = (jax.ShapeDtypeStruct((4, 4096, 4096), jnp.bfloat16),) * 3
    lowered = forward.lower(weights, jax.ShapeDtypeStruct((4096 * mesh.size, 4096), jnp.bfloat16))
    options = BACKEND.kanawa_compiler_options(parse_target("v5p-32").device, "train")
    lowered.compile(compiler_options={**options, "xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True})
    text = max(tmp_path.glob("*.after_codegen.txt"), key=lambda path: path.stat().st_size).read_text(encoding="utf-8")
    assert len(re.findall(r"async-start\(|all-gather-start\(|async-collective-start", text)) >= len(weights)
