"""Golden: the mesh and remat policy for each number of GPUs and model size."""

import pytest
from kanawa.testing.backend import mesh_row

SAVE = "save-qkv-and-output"
TABLE = {
    ("h100", 7e9): ({}, {}, ""),
    ("h100-8", 1e8): ({"fsdp": -1}, {}, ""),
    ("h100-8", 7e9): ({"fsdp": -1}, {}, SAVE),
    ("h100-64", 1e9): ({"data": -1, "fsdp": 8}, {}, ""),
    ("h100-256", 7e9): ({"data": -1, "fsdp": 8}, {}, SAVE),
    ("h100-32", 70e9): ({"fsdp": -1}, {}, SAVE),
    ("h100-512", 70e9): ({"data": -1, "fsdp": 64}, {}, SAVE),
    ("h200-512", 405e9): ({"fsdp": -1}, {}, SAVE),
    ("a100-64", 70e9): ({"fsdp": -1}, {}, SAVE),
    ("a100-512", 70e9): ({"data": -1, "fsdp": 128}, {}, SAVE),
    ("a100_40gb-512", 70e9): ({"data": -1, "fsdp": 128}, {}, SAVE),
    ("gb200-72", 70e9): ({"fsdp": -1}, {}, SAVE),
    ("mi355x-64", 70e9): ({"data": -1, "fsdp": 16}, {}, SAVE),
    ("b200-512", 70e9): ({"data": -1, "fsdp": 16}, {}, SAVE),
}


@pytest.mark.parametrize("selector, parameters", TABLE)
def test_mesh(selector, parameters):
    assert mesh_row(selector, parameters) == TABLE[selector, parameters]
