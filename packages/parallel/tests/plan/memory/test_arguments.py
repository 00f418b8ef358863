"""What a device holds of a program's arguments, against real arrays on real shardings."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa_parallel.plan.memory.arguments import argument_bytes, bytes_by_kind, bytes_by_module, local_bytes


class State(NamedTuple):
    step: Any
    params: Any
    opt: Any


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def step(state, batch):
    return state, batch


def abstract(shape, spec, mesh, dtype="float32", **kwargs):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec, **kwargs))


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((16, 8), PartitionSpec()),
        ((16, 8), PartitionSpec("fsdp")),
        ((16, 8), PartitionSpec(("data", "fsdp"))),
        ((16, 8), PartitionSpec("fsdp", "data")),
        ((), PartitionSpec()),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_local_bytes_are_those_of_a_real_shard(mesh, shape, spec, dtype):
    leaf = abstract(shape, spec, mesh, dtype)
    placed = jax.device_put(jnp.zeros(shape, dtype), leaf.sharding)
    assert local_bytes(leaf) == placed.addressable_shards[0].data.nbytes


def test_an_array_without_a_sharding_is_whole():
    assert local_bytes(jax.ShapeDtypeStruct((3, 5), jnp.float32)) == 60


def test_half_bytes_round_down_to_whole_ones_of_the_array():
    assert local_bytes(jax.ShapeDtypeStruct((7,), jnp.int4)) == 3


def test_on_a_processor_host_memory_is_the_devices_own(mesh):
    """There pinned memory is the same memory; on an accelerator it would count nothing."""
    leaf = abstract((16, 8), PartitionSpec("fsdp"), mesh, memory_kind="pinned_host")
    assert local_bytes(leaf) == 16 * 8 * 4 / 4


@pytest.fixture
def held(mesh):
    whole, split = PartitionSpec(), PartitionSpec("fsdp")
    params = {"stack": {"layer": {"up": abstract((8, 4), split, mesh)}}, "table": abstract((8, 2), split, mesh)}
    opt = {
        "adam/mu/stack.layer.up": abstract((8, 4), split, mesh),
        "adam/mu/table": abstract((8, 2), split, mesh),
        "schedule/count": abstract((), whole, mesh, "int32"),
    }
    state = State(abstract((), whole, mesh, "int32"), params, opt)
    return argument_bytes(step, (state, {"ids": abstract((16, 4), PartitionSpec("data"), mesh, "int32")}))


def test_paths_are_the_states_fields_or_the_arguments_name(held):
    assert held == {
        "step": 4,
        "params.stack.layer.up": 32,
        "params.table": 16,
        "opt.adam/mu/stack.layer.up": 32,
        "opt.adam/mu/table": 16,
        "opt.schedule/count": 4,
        "batch.ids": 128,
    }


def test_kinds_add_up_to_everything(held):
    assert bytes_by_kind(held) == {"state": 4, "parameters": 48, "optimizer": 52, "inputs": 128}
    assert sum(bytes_by_kind(held).values()) == sum(held.values())


def test_an_optimizers_arrays_belong_to_the_parameters_they_follow(held):
    assert bytes_by_module(held) == {
        "learner": {"optimizer": 4},
        "model": {"parameters": 16, "optimizer": 16},
        "model.stack.layer": {"parameters": 32, "optimizer": 32},
    }
