"""Replica groups in every form that compilers write, and the mesh axes they follow."""

import numpy as np
import pytest
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
        ("replica_groups={}", [list(range(8))], ("data", "fsdp")),
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
