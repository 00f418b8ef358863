"""Golden: the mesh and remat policy for each slice and model size."""

import pytest
from kanawa.testing.backend import mesh_row

TABLE = {
    ("v5e-1", 1e8): ({}, {}, ""),
    ("v5e-8", 1e8): ({"fsdp": -1}, {}, ""),
    ("v5e-8", 7e9): ({"fsdp": -1}, {}, ""),
    ("v5e-256", 7e9): ({"fsdp": -1}, {}, ""),
    ("v5e-256x2", 7e9): ({"fsdp": -1}, {"data": 2}, ""),
    ("v5e-256x4", 7e9): ({"fsdp": -1}, {"data": 4}, ""),
    ("v5e-256x4", 70e9): ({"fsdp": -1}, {"data": 4}, ""),
    ("v4-1024", 7e9): ({"fsdp": -1}, {}, ""),
    ("v4-1024", 70e9): ({"fsdp": -1}, {}, ""),
    ("v5p-8", 7e9): ({"fsdp": -1}, {}, "save-qkv-and-output"),
    ("v5p-512", 7e9): ({"data": -1, "fsdp": 64}, {}, "save-projections"),
    ("v5p-512", 70e9): ({"fsdp": -1}, {}, "save-qkv-and-output"),
    ("v5p-1024", 70e9): ({"data": -1, "fsdp": 256}, {}, "save-attention-and-gate"),
    ("v5p-1024x2", 405e9): ({"fsdp": -1}, {"data": 2}, "save-qkv-and-output"),
    ("v6e-256", 7e9): ({"fsdp": -1}, {}, ""),
    ("v6e-256x2", 7e9): ({"fsdp": -1}, {"data": 2}, ""),
    ("v6e-256", 70e9): ({"fsdp": -1}, {}, ""),
    ("v6e-256x4", 70e9): ({"fsdp": -1}, {"data": 4}, ""),
    ("v7x-128", 70e9): ({"fsdp": -1}, {}, "save-qkv-offload-input"),
    ("tpu7x-256", 1e9): ({"fsdp": -1}, {}, ""),
}


@pytest.mark.parametrize("selector, parameters", TABLE)
def test_mesh(selector, parameters):
    assert mesh_row(selector, parameters) == TABLE[selector, parameters]
