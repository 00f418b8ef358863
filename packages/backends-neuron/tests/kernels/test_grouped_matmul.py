"""The NKI grouped matmul against the reference, in the interpreter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.testing.kernel import KernelConformance
from kanawa_backends_neuron.kernels.grouped_matmul.blocks import blocks_of, most_blocks
from kanawa_backends_neuron.kernels.grouped_matmul.kernel import NkiGroupedMatmul
from kanawa_kernel_tools.examples.grouped_matmul import BASE

#: Panels that aren't whole, several blocks of several tiles a group, and groups of a few rows.
CHANGES = (
    {"rows": 700, "inner": 200, "columns": 600, "groups": 2},
    {"rows": 30, "inner": 40, "columns": 24, "groups": 8},
    {"rows": 300, "inner": 600, "columns": 130, "groups": 3, "dtype": "bfloat16", "rhs_dtype": "bfloat16"},
)


class TestGroupedMatmul(KernelConformance):
    def kernel(self):
        return NkiGroupedMatmul()

    def problems(self):
        return tuple(dataclasses.replace(BASE, **change) for change in CHANGES)


REFUSALS = {
    "dtype int8; needs": {"dtype": "int8", "rhs_dtype": "int8"},
    "dtypes bfloat16 and float32 differ": {"dtype": "bfloat16"},
    "128 rows of 65536 elements take 512 KiB": {"columns": 65536},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    verdict = NkiGroupedMatmul().supports(dataclasses.replace(BASE, **REFUSALS[reason]), None)
    assert not verdict
    assert reason in verdict.reason


@pytest.mark.parametrize("sizes", [[0, 0, 0], [5, 0, 3], [40, 1, 9], [0, 50, 0], [50, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("size", [4, 16])
def test_every_row_is_written_once_and_read_by_its_group(sizes, size):
    rows = 50
    blocks = jax.jit(blocks_of, static_argnums=(1, 2))(jnp.array(sizes), rows, size)
    assert blocks.reads.shape == (most_blocks(rows, 3, size), size)
    writes = np.asarray(blocks.writes).ravel()
    assert sorted(writes[writes < rows]) == list(range(rows))
    owner = np.repeat(np.arange(3), sizes)
    for read, group in zip(np.asarray(blocks.reads), np.asarray(blocks.groups)[:, 0], strict=True):
        assert set(owner[read[read < rows]]) <= {group}
    assert np.sum(np.asarray(blocks.reads) < rows) == sum(sizes)
    for group, (first, end) in enumerate(np.asarray(blocks.limits)):
        assert np.sum(np.asarray(blocks.reads)[first:end] < rows) == sizes[group]
