"""Every kernel of this package compiled for H100 and B200 at shapes of real models: it fits, and hardly spills.

Slow, and needs the CUDA wheels: KANAWA_AOT=1 python -m pytest packages/backends-gpu/tests/aot
"""

import dataclasses
import math
import os
import re

import jax
import jax.numpy as jnp
import pytest
from gpu_shapes import SHAPES, TARGETS, Shape
from kanawa.composition.target import parse_target
from kanawa.plugins import KernelHalf, ScheduleRequest, component
from kanawa_backends_gpu.schedule import compiled_half, kernel_schedules
from kanawa_backends_gpu.topology import missing_wheels
from kanawa_kernel_tools.schedules.compiled import halves

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.skipif(
        bool(missing_wheels()),
        reason='no GPU compiler: pip install "kanawa-backends-gpu[compile]"',
    ),
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
]

PALLAS = [shape for shape in SHAPES if not shape.kernel.endswith((".cudnn", ".xla"))]
#: Registers that may be spilt: training's backward for the keys holds two tiles of sums (24 seen).
SPILLS = {"attention.gpu.pallas": 32}
XLA = [shape for shape in SHAPES if shape.kernel.endswith(".xla")]


def title(shape: Shape) -> str:
    return f"{shape.kernel}: {shape.title}"


@pytest.mark.parametrize("shape", PALLAS, ids=title)
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_fits_and_hardly_spills(target, shape):
    device = parse_target(target).device
    assert component("kernels", shape.kernel)().supports(shape.problem, device)
    request = ScheduleRequest(
        kernel=shape.kernel, problem=shape.problem, target=parse_target(target), differentiated=shape.differentiated
    )
    records = kernel_schedules(request)
    assert {record.direction for record in records} == {"forward", *["backward"] * shape.differentiated}
    for record in records:
        assert record.spills <= SPILLS.get(shape.kernel, 0), record
        # A block that asks for more shared memory or registers than there are is only refused when it is launched.
        assert record.occupancy > 0, record


@pytest.mark.parametrize("shape", XLA, ids=title)
@pytest.mark.parametrize("target", TARGETS)
def test_xla_writes_no_wider_weight(target, shape):
    problem = shape.problem
    (forward,) = halves(component("kernels", shape.kernel)(), problem, False)
    compiled = compiled_half(forward, parse_target(target).device)
    assert re.search(r'"kind":"__triton_\w*gemm|__cublas\$lt\$matmul\$f8', compiled.program)
    assert compiled.temporary_bytes < 2 * math.prod(problem.rhs_shape)


def test_cublaslt_takes_float8_where_triton_is_off():
    """On a device XLA measures both; here one is taken away, to see that the other would be there."""
    shape = next(shape for shape in XLA if shape.problem.lhs_format == "float8_e4m3fn")
    (forward,) = halves(component("kernels", shape.kernel)(), shape.problem, False)
    compiled = compiled_half(forward, parse_target("h100").device, {"xla_gpu_enable_triton_gemm": False})
    assert "__cublas$lt$matmul$f8" in compiled.libraries


def test_ragged_dot_computes_every_group_for_all_rows():
    """Why there is a grouped matmul of our own; where this fails, XLA may have made it needless."""
    problem = next(shape for shape in SHAPES if shape.kernel == "grouped_matmul.gpu.triton").problem
    sizes = jax.ShapeDtypeStruct((problem.groups,), jnp.int32)
    lhs = jax.ShapeDtypeStruct((problem.rows, problem.inner), jnp.bfloat16)
    rhs = jax.ShapeDtypeStruct((problem.groups, problem.inner, problem.columns), jnp.bfloat16)
    theirs = compiled_half(KernelHalf("forward", jax.lax.ragged_dot, (lhs, rhs, sizes)), parse_target("h100").device)
    (forward,) = halves(component("kernels", "grouped_matmul.gpu.triton")(), problem, False)
    ours = compiled_half(forward, parse_target("h100").device)
    rows = problem.rows * problem.columns * 2
    assert theirs.temporary_bytes >= problem.groups * rows
    assert ours.temporary_bytes <= 2 * rows


def test_a_tuning_changes_what_is_compiled():
    shape = next(shape for shape in SHAPES if shape.kernel == "attention.gpu.decode")
    request = ScheduleRequest(
        kernel=shape.kernel, problem=shape.problem, target=parse_target("h100"), differentiated=False
    )
    (plain,) = kernel_schedules(request)
    (tuned,) = kernel_schedules(dataclasses.replace(request, tuning=(("keys", 32),)))
    assert tuned.shared_bytes < plain.shared_bytes
