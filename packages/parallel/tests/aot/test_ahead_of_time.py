"""Compiles expert parallelism for pods that aren't there: rows travel by ragged all-to-all, without padding.

Slow, and needs a backend with its compiler: KANAWA_AOT=1 python -m pytest packages/parallel/tests/aot
"""

import os

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.composition.target import parse_target
from kanawa.errors import KanawaError
from kanawa.kernels.grouped_matmul import grouped_matmul
from kanawa.plugins import host
from kanawa_parallel.experts.exchange import through_shards

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.filterwarnings("default"),
]
EXPERTS, WIDTH, HIDDEN, ROWS = 128, 2048, 768, 4096


def pod(selector):
    """Returns compile-only devices, or skips where their backend or compiler isn't installed."""
    try:
        target = parse_target(selector)
        found = [devices for _, devices in host().collect("kanawa_topology", target=target) if devices]
    except KanawaError as error:
        pytest.skip(str(error))
    return found[0] if found else pytest.skip(f"no installed backend compiles for {selector}")


@pytest.mark.parametrize(("selector", "platform"), [("v5p-128", "tpu"), ("h100-64", "cuda")])
def test_experts_over_a_pod_exchange_only_rows(selector, platform):
    devices = pod(selector)
    mesh = Mesh(np.array(devices), ("expert",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("expert"))

    class Pod(kn.Module):
        def forward(self, rows, sizes, up, down):
            def local(rows, sizes, up, down):
                def experts(rows, group_sizes):
                    return grouped_matmul(jax.nn.silu(grouped_matmul(rows, up, group_sizes)), down, group_sizes)

                return through_shards(experts, "expert", 1.0)(rows, sizes)

            specs = (PartitionSpec("expert"),) * 4
            return kn.shard_map(local, in_specs=specs, out_specs=specs[0], axis_names=("expert",))(
                rows, sizes, up, down
            )

    def loss(rows, sizes, up, down):
        out, _ = kn.functional(Pod.Config().build())({}, {}, rows, sizes, up, down)
        return jnp.sum(jnp.sin(out.astype(jnp.float32)))

    shapes = [
        jax.ShapeDtypeStruct((len(devices) * ROWS, WIDTH), jnp.bfloat16, sharding=split),
        jax.ShapeDtypeStruct((len(devices) * EXPERTS,), jnp.int32, sharding=split),
        jax.ShapeDtypeStruct((EXPERTS, WIDTH, HIDDEN), jnp.bfloat16, sharding=split),
        jax.ShapeDtypeStruct((EXPERTS, HIDDEN, WIDTH), jnp.bfloat16, sharding=split),
    ]
    # JAX's own megablox kernel relies on implicit promotion.
    with jax.set_mesh(mesh), jax.numpy_dtype_promotion("standard"):
        gradient = jax.jit(jax.grad(loss, argnums=(0, 2, 3)))
        lowered = gradient.trace(*shapes).lower(lowering_platforms=(platform,))
    # There and back, forward and backward: four exchanges.
    assert lowered.as_text().count("ragged_all_to_all") == 4
    # Room for as many rows as each shard sends, there and back: nothing is padded beyond it.
    room = ROWS * WIDTH * 2
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 16 * room
