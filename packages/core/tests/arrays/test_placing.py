"""Shardings of trees, memory kinds, optimizer state beside its parameters, and the one product of weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kanawa.arrays.broadcast import along_last
from kanawa.arrays.optimizer_state import (
    OptimizerStateError,
    follows,
    from_flat,
    on_device,
    parameter_of,
    state_sharding,
    stored_in,
    to_flat,
)
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.shardings import abstract_params, array_sharding, param_shardings, replicated
from kanawa.arrays.spec import ParamSpec
from kanawa.errors import ShardingError
from kanawa.kernels.matmul import matmul

MESH = AbstractMesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
RULES = (("embed", ("fsdp",)), ("mlp", ("tensor",)))
SPECS = {"up": {"weight": ParamSpec((8, 6), ("embed", "mlp"))}, "scale": ParamSpec((8,), ("embed",))}


def test_a_tree_of_specs_gives_a_tree_of_shardings():
    found = param_shardings(SPECS, RULES, MESH)
    assert found["up"]["weight"].spec == P("fsdp", "tensor")
    assert found["scale"].spec == P("fsdp")


def test_a_parameter_kept_on_the_host_says_so():
    kept = ParamSpec((8,), ("embed",), memory="pinned_host")
    assert param_shardings({"x": kept}, RULES, MESH)["x"].memory_kind == "pinned_host"
    assert param_shardings(SPECS, RULES, MESH)["scale"].memory_kind != "pinned_host"


def test_abstract_parameters_carry_shardings_only_under_a_mesh():
    assert abstract_params(SPECS)["scale"].sharding is None
    leaf = abstract_params(SPECS, RULES, MESH)["up"]["weight"]
    assert (leaf.shape, str(leaf.dtype), leaf.sharding.spec) == ((8, 6), "float32", P("fsdp", "tensor"))


def test_an_array_that_does_not_divide_is_named():
    with pytest.raises(ShardingError, match="logits: axis 'mlp' has size 5, which is not a multiple of 2"):
        array_sharding((8, 5), ("embed", "mlp"), RULES, MESH, "logits")


def test_replicated_is_whole_everywhere():
    assert replicated(MESH).spec == P()
    assert replicated(MESH).is_fully_replicated


def spec_of(shape, spec=None, dtype="float32"):
    sharding = None if spec is None else NamedSharding(MESH, spec)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@pytest.mark.parametrize(
    ("leaf", "moves"),
    [(spec_of((8,), P("fsdp")), True), (spec_of((), P()), False), (spec_of((8,)), False)],
    ids=["sharded", "number", "no mesh"],
)
def test_only_arrays_on_a_mesh_wait_in_host_memory(leaf, moves):
    assert stored_in(leaf, "device") is leaf
    kept = stored_in(leaf, "pinned_host")
    assert (kept is not leaf) == moves
    assert not moves or (kept.sharding.memory_kind, kept.sharding.spec) == ("pinned_host", P("fsdp"))


def test_state_comes_to_the_device_only_where_it_waits_elsewhere():
    state = {"mu/w": jnp.ones(3), "count": jnp.int32(2)}
    assert on_device(state)["mu/w"] is state["mu/w"]
    with use_plan(ExecutionPlan(optimizer_memory="pinned_host")):
        text = str(jax.make_jaxpr(on_device)(state))
    assert text.count("device_put") == 1, "numbers never left"


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 6), P("fsdp", "tensor")),
        ((8, 1), P("fsdp", None)),
        ((1, 6), P(None, "tensor")),
        # A square of the rows, and one of blocks that no longer divide.
        ((8, 8), P("fsdp", "tensor")),
        ((8, 3), P("fsdp", None)),
        ((3,), P()),
        ((8,), P()),
    ],
)
def test_state_lies_as_its_parameter_does_in_the_dimensions_it_divides(shape, spec):
    param = spec_of((8, 6), P("fsdp", "tensor"))
    assert state_sharding(shape, param, replicated(MESH)).spec == spec


def test_state_of_a_parameter_without_a_mesh_has_none():
    assert state_sharding((8, 6), spec_of((8, 6)), None) is None
    assert state_sharding((8, 1), spec_of((8, 6)), None) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_state_follows_its_parameter_dimension_by_dimension(shape, data):
    other = tuple(data.draw(st.sampled_from([1, size, 3 * size])) for size in shape)
    assert follows(other, tuple(shape))
    assert not follows((*other, 1), tuple(shape))


STATE = ({"adam": {"mu": {"a.b": jnp.ones(2), "c": jnp.ones(3)}, "count": jnp.int32(0)}}, (jnp.zeros(1),))


def test_flat_state_leads_back():
    flat = to_flat(STATE)
    assert set(flat) == {"0/adam/mu/a.b", "0/adam/mu/c", "0/adam/count", "1/0"}
    assert parameter_of("0/adam/mu/a.b") == "a.b"
    back = from_flat(STATE, flat)
    assert jax.tree.structure(back) == jax.tree.structure(STATE)
    assert all(a is b for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(STATE), strict=True))


def test_state_of_another_shape_of_optimizer_is_refused_by_path():
    flat = to_flat(STATE)
    del flat["0/adam/mu/c"]
    flat["0/adam/nu/c"] = jnp.ones(3)
    with pytest.raises(OptimizerStateError) as error:
        from_flat(STATE, flat)
    assert "missing: 0/adam/mu/c\n" in str(error.value)
    assert "unexpected: 0/adam/nu/c" in str(error.value)


def test_two_arrays_under_one_path_are_refused():
    with pytest.raises(OptimizerStateError, match="share a path: give each transform its own name"):
        to_flat({"a": {"b/c": jnp.ones(1)}, "a/b": {"c": jnp.ones(1)}})


@pytest.mark.parametrize(("rank", "contracted"), [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_a_product_contracts_the_weights_leading_dimensions(rank, contracted):
    shape = (2, 3, 4, 5)[4 - rank :] if rank < 4 else (2, 3, 4, 5)
    x = jax.random.normal(jax.random.key(0), shape)
    weight = jax.random.normal(jax.random.key(1), (*shape[rank - contracted :], 7))
    expected = np.tensordot(np.asarray(x), np.asarray(weight), contracted)
    assert np.allclose(matmul(x, weight, contracted), expected, atol=1e-5)


def test_broadcasting_is_said_not_implied():
    scale = jnp.arange(3.0)
    assert along_last(scale, 3).shape == (1, 1, 3)
    assert along_last(scale, 1) is scale or jnp.array_equal(along_last(scale, 1), scale)
    with pytest.raises(ValueError, match="rank"):
        jnp.ones((2, 3)) * scale
