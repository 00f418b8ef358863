"""From logical axes to mesh axes: order, one use each, second choices, and what doesn't divide."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec
from kanawa.arrays.rules import Misfit, assign, check_divides, misfits, partition, resolve, split_axes
from kanawa.errors import ShardingError

MESH = {"data": 2, "fsdp": 4, "tensor": 2, "context": 1}
RULES = (
    ("batch", ("data", "fsdp")),
    ("heads", ("tensor",)),
    ("mlp", ("tensor",)),
    ("length", ("context", "tensor")),
    ("embed", ("fsdp",)),
)
AXES = ("batch", "heads", "mlp", "length", "embed", "vocab", None)


def test_each_dimension_gets_what_its_first_rule_leaves_it():
    assert assign(("batch", "length", "embed"), RULES, MESH) == (("data", "fsdp"), ("tensor",), ())
    assert assign(("embed", "mlp"), RULES, MESH) == (("fsdp",), ("tensor",))


def test_rules_decide_before_the_order_of_dimensions():
    assert assign(("length", "heads"), RULES, MESH) == ((), ("tensor",))


def test_a_later_rule_is_a_second_choice_of_an_axis_that_got_none():
    rules = (("kv_heads", ("data",)), ("heads", ("data",)), ("heads", ("tensor",)))
    assert assign(("kv_heads", "heads"), rules, MESH) == (("data",), ("tensor",))


def test_mesh_axes_of_size_one_or_absent_claim_nothing():
    assert assign(("length",), (("length", ("context", "stage")),), MESH) == ((),)


def test_jax_writes_it_without_whole_dimensions_at_the_end():
    assert partition((("data", "fsdp"), (), ("tensor",), ())) == PartitionSpec(("data", "fsdp"), None, "tensor")
    assert resolve(("vocab", "embed"), RULES, MESH) == PartitionSpec(None, "fsdp")
    assert partition(((), ())) == PartitionSpec()


@given(
    axes=st.lists(st.sampled_from(AXES), min_size=1, max_size=5),
    rules=st.lists(
        st.tuples(
            st.sampled_from([a for a in AXES if a]),
            st.lists(st.sampled_from(sorted(MESH)), min_size=1, max_size=3, unique=True).map(tuple),
        ),
        max_size=6,
    ),
)
def test_no_mesh_axis_is_used_twice_and_every_use_has_a_rule(axes, rules):
    assignment = assign(tuple(axes), tuple(rules), MESH)
    used = [name for names in assignment for name in names]
    assert len(used) == len(set(used))
    assert all(MESH[name] > 1 for name in used)
    for axis, names in zip(axes, assignment, strict=True):
        assert not names or any(rule == axis and set(names) <= set(mesh_axes) for rule, mesh_axes in rules)


@given(st.lists(st.integers(1, 24), min_size=3, max_size=3))
def test_misfits_are_the_dimensions_with_a_remainder(shape):
    axes = ("batch", "heads", "embed")
    assignment = assign(axes, RULES, MESH)
    expected = {i for i, names in enumerate(assignment) if shape[i] % math.prod(MESH[n] for n in names)}
    assert {misfit.position for misfit in misfits(tuple(shape), axes, assignment, MESH)} == expected


def test_a_misfit_says_what_it_is():
    assignment = assign(("batch", "heads"), RULES, MESH)
    assert misfits((8, 3), ("batch", "heads"), assignment, MESH) == [Misfit(1, "heads", 3, ("tensor",), 2)]
    with pytest.raises(
        ShardingError,
        match=r"scores: axis 'heads' has size 3, which is not a multiple of 2 \(mesh axes tensor=2\); change the mesh",
    ):
        check_divides((8, 3), ("batch", "heads"), assignment, MESH, "scores")


def test_a_dimension_of_one_broadcasts_and_claims_nothing():
    assert split_axes((1, 8), ("batch", "embed")) == (None, "embed")
