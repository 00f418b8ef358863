"""Golden: the mesh and remat policy for each number of chips and model size."""

import pytest
from kanawa.testing.backend import mesh_row

TABLE = {
    ("trn1-32", 1e9): ({"fsdp": -1, "tensor": 2}, {}, ""),
    ("trn2", 1e8): ({"fsdp": -1, "tensor": 4}, {}, ""),
    ("trn2-64", 7e9): ({"fsdp": -1, "tensor": 4}, {}, "save-qkv-and-output"),
    ("trn3-144", 70e9): ({"fsdp": -1, "tensor": 4}, {}, "save-qkv-and-output"),
    ("trn2-1024", 70e9): ({"fsdp": -1, "tensor": 4}, {}, "save-qkv-and-output"),
}


@pytest.mark.parametrize("selector, parameters", TABLE)
def test_mesh(selector, parameters):
    assert mesh_row(selector, parameters) == TABLE[selector, parameters]
