"""The largest problems that kernels accept fit in SBUF: the interpreter counts what is alive."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa_backends_neuron.kernels.attention.training import parts_of
from kanawa_backends_neuron.kernels.grouped_matmul.kernel import _block
from kanawa_backends_neuron.kernels.rms_norm.kernel import largest_width
from kanawa_kernel_tools.examples.attention import BASE

nki = pytest.importorskip("nki")
from kanawa_backends_neuron.kernels.attention.backward import attention_backward  # noqa: E402
from kanawa_backends_neuron.kernels.grouped_matmul.rows import grouped_rows  # noqa: E402
from kanawa_backends_neuron.kernels.rms_norm.backward import rms_norm_backward  # noqa: E402

ONE = np.float32(0.01)


@pytest.mark.parametrize("dtype, width", [("bfloat16", 128), ("float32", 128), ("bfloat16", 256)])
def test_attention_backward_over_the_longest_row(dtype, width):
    long = dataclasses.replace(BASE, batch=1, num_heads=1, num_kv_heads=1, q_length=65536, kv_length=65536)
    long = dataclasses.replace(long, head_dim=width, v_head_dim=width, dtype=dtype)
    keys = max(part.k_end - part.k_first for part in parts_of(long))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    q, k = np.full((1, 1, 128, width), ONE, kind), np.full((1, keys, width), ONE, kind)
    rows = np.zeros((1, 1, 128, 1), np.float32)
    # All of the row's keys are resident; two blocks of them are enough to see what is in flight.
    span = (True, -1, -1, 0, -640)
    launched = nki.simulate(attention_backward)
    launched(q, k, k, None, None, None, q, rows, rows, 0.1, 0.0, span)
    assert launched.machine.sbuf_peak > 100 * 1024
    assert launched.machine.psum_peak <= 8


@pytest.mark.parametrize("dtype, kind", [("float32", np.float32), ("bfloat16", ml_dtypes.bfloat16)])
def test_the_widest_norm(dtype, kind):
    x = np.full((2, 128, largest_width(dtype)), ONE, kind)
    launched = nki.simulate(rms_norm_backward)
    launched(x, x[:1, 0].astype(np.float32), np.ones((2, 128, 1), np.float32), x)
    assert launched.machine.sbuf_peak > 150 * 1024


@pytest.mark.parametrize("inner", [4096, 14336])
def test_the_widest_groups(inner):
    problem = GroupedMatmulProblem(
        rows=8192, inner=inner, columns=512, groups=2, dtype="bfloat16", rhs_dtype="bfloat16"
    )
    size = _block(problem, inner)
    lhs = np.full((size, inner), ONE, ml_dtypes.bfloat16)
    rhs = np.full((1, inner, 64), ONE, ml_dtypes.bfloat16)
    places = np.arange(size, dtype=np.uint32)[None]
    launched = nki.simulate(grouped_rows)
    out = launched(lhs, rhs, places, places, np.zeros((1, 1), np.int32))
    assert out.shape == (size, 64)
    assert launched.machine.psum_peak <= 8
