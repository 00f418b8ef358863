"""Replica groups in every form that compilers write, and the mesh axes they follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.plan.read.groups import mesh_axes, replica_groups
from kanawa_parallel.plan.read.hlo import parse_instruction

MESH = {"data": 2, "fsdp": 4}
FSDP = [[0, 1, 2, 3], [4, 5, 6, 7]]
DATA = [[0, 4], [1, 5], [2, 6], [3, 7]]


def groups(text):
    return replica_groups(parse_instruction(f"  %g = f32[8] all-reduce(%x), {text}, to_apply=%add"), 8)


@pytest.mark.parametrize(
    ("text", "expected", "axes"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", FSDP, ("fsdp",)),
        ("replica_groups=[2,4]<=[8]", FSDP, ("fsdp",)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", DATA, ("data",)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", FSDP, ("fsdp",)),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", DATA, ("data",)),
        ("replica_groups=mesh['a'=8] {'a'}", [list(range(8))], ("data", "fsdp")),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]], ("data",)),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", FSDP, ("fsdp",)),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]], ("fsdp",)),
        ("replica_groups=mesh['a'=4,'b'=2] {'a':(2)2,'b'}", FSDP, ("fsdp",)),
        ("replica_groups={}", [list(range(8))], ("data", "fsdp")),
        ("replica_groups={}, dimensions={0}, sharding={devices={{3}}}", [list(range(8))], ("data", "fsdp")),
    ],
)
def test_forms(text, expected, axes):
    found = groups(text)
    np.testing.assert_array_equal(found, expected)
    assert mesh_axes(found, MESH) == axes


def test_permutes_name_pairs():
    permute = parse_instruction("  %p = f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}")
    found = replica_groups(permute, 4)
    assert found.tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert mesh_axes(found, {"context": 4}) == ("context",)


def test_an_unknown_form_is_an_error_not_a_guess():
    with pytest.raises(ValueError, match="unknown form"):
        groups("replica_groups=[8]=>[2,4]")


def lists(groups):
    return "replica_groups={" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


@given(data=st.data())
def test_iota_and_lists_say_the_same(data):
    """`[groups,members]<=[dims]T(order)` is a reshaped, transposed count: written out it is a list of groups."""
    dims = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3))
    order = data.draw(st.permutations(range(len(dims))))
    devices = int(np.prod(dims))
    members = data.draw(st.sampled_from([n for n in (1, 2, 4, 8, 16, 32, 64) if devices % n == 0]))
    flat = np.arange(devices).reshape(dims).transpose(order).reshape(-1, members)
    turned = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
    iota = f"replica_groups=[{devices // members},{members}]<=[{','.join(map(str, dims))}]{turned}"
    np.testing.assert_array_equal(of(iota, devices), flat)
    np.testing.assert_array_equal(of(lists(flat.tolist()), devices), flat)


def of(text, devices):
    return replica_groups(parse_instruction(f"  %g = f32[8] all-reduce(%x), {text}, to_apply=%add"), devices)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4),
    along=st.sets(st.integers(0, 3)),
)
def test_groups_along_mesh_axes_are_recognised(sizes, along):
    """Members differ in exactly the axes they were grouped along, of those that have more than one device."""
    mesh = {f"axis{i}": size for i, size in enumerate(sizes)}
    along = [i for i in sorted(along) if i < len(sizes)]
    kept = [i for i in range(len(sizes)) if i not in along]
    grid = np.arange(int(np.prod(sizes))).reshape(sizes).transpose([*kept, *along])
    groups = grid.reshape(-1, int(np.prod([sizes[i] for i in along])))
    assert mesh_axes(groups, mesh) == tuple(f"axis{i}" for i in along if sizes[i] > 1)


def test_groups_of_more_devices_than_the_mesh_has_follow_no_axis():
    assert mesh_axes(np.array([[0, 9]]), MESH) == ()
    assert mesh_axes(np.array([[0, 1]]), {}) == ()


@pytest.mark.parametrize(
    ("named", "groups"),
    [
        ("{'b':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("{'b':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("{'a','b':(1)2}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("{'a','b':(1)2,'b':(2)2}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ],
)
def test_a_part_of_an_axis(named, groups):
    """From jaxlib 0.12 on: 'b':(2)2 are the two that differ last along an axis of four."""
    line = f"  %r = f32[4] all-reduce(%x), replica_groups=mesh['a'=2,'b'=4] {named}, to_apply=%add"
    assert replica_groups(parse_instruction(line), 8).tolist() == groups
