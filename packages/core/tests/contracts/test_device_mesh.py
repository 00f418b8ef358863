"""Meshes: -1 is inferred, slices are outermost, and what doesn't divide is explained before anything compiles."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa.contracts.device_mesh import DeviceMesh, resolved_axes
from kanawa.errors import ShardingError


def shape(devices, slices=1, **fields):
    return dict(DeviceMesh.Config(**fields).build().shape(devices, slices))


def test_axes_come_in_link_order():
    assert list(shape(8, axes={"tensor": 2, "fsdp": -1})) == ["fsdp", "tensor"]
    assert shape(8, axes={"tensor": 2, "fsdp": -1}) == {"fsdp": 4, "tensor": 2}


def test_slices_multiply_their_axis():
    assert shape(16, 2, axes={"fsdp": -1}, dcn_axes={"data": -1}) == {"data": 2, "fsdp": 8}
    assert shape(16, 2, axes={"data": 2, "fsdp": -1}, dcn_axes={"data": 2}) == {"data": 4, "fsdp": 4}


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.integers(0, 3))
def test_one_axis_is_inferred(sizes, hidden):
    names = ["data", "fsdp", "context", "tensor"][: len(sizes)]
    axes = dict(zip(names, sizes, strict=True))
    wanted = dict(axes)
    axes[names[hidden % len(names)]] = -1
    assert resolved_axes(axes, int(np.prod(sizes)), "axes", "devices") == wanted


def test_hybrid_mesh_keeps_a_slice_together():
    mesh = DeviceMesh.Config(axes={"fsdp": 4}, dcn_axes={"data": 2}).build().mesh(jax.devices()[:8], 2)
    assert mesh.shape == {"data": 2, "fsdp": 4}
    assert [d.id for d in mesh.devices[0]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "devices", "slices", "message"),
    [
        ({"axes": {"fsdp": 3}}, 8, 1, r"needs 3 devices, but there are 8; sizes that divide: 1, 2, 4, 8"),
        ({"axes": {"fsdp": -1, "data": 3}}, 8, 1, r"needs a multiple of 3 devices"),
        ({"axes": {"fsdp": -1, "data": -1}}, 8, 1, r"one at most may be -1"),
        ({"axes": {"fsdb": 8}}, 8, 1, r"unknown mesh axis 'fsdb'; did you mean 'fsdp'"),
        ({"axes": {"fsdp": 0}}, 8, 1, r"sizes must be positive"),
        ({"axes": {"fsdp": -1}}, 8, 2, r"has 2 slices, but execution.mesh.dcn_axes is empty"),
    ],
)
def test_what_does_not_fit_is_explained(fields, devices, slices, message):
    with pytest.raises(ShardingError, match=message):
        shape(devices, slices, **fields)
