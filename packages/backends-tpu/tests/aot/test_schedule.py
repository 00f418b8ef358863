"""Schedules by the real compiler: JAX's Splash, and a stranger's kernel that is known by its entry point alone.

Slow, and needs the wheel libtpu: KANAWA_AOT=1 python -m pytest packages/backends-tpu/tests/aot
"""

import dataclasses
import os
import sys

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import KernelError
from kanawa.plugins import PluginHost, ScheduleRequest, set_host
from kanawa_backends_tpu.topology import missing_wheels
from kanawa_kernel_tools.examples.attention import TYPICAL
from kanawa_kernel_tools.schedules.compiled import schedules

pytestmark = [
    pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile"),
    pytest.mark.skipif(missing_wheels(), reason='no libtpu: pip install "kanawa-backends-tpu[tpu]"'),
]
SMALL = dataclasses.replace(TYPICAL, q_length=2048, kv_length=2048, num_heads=2, num_kv_heads=2)

STRANGER = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kanawa.kernels import Kernel, Verdict


def scaled(x_ref, out_ref):
    out_ref[...] = jnp.dot(x_ref[...], x_ref[...].T[:, :128], preferred_element_type=jnp.float32)


class Odd(Kernel):
    name = "attention.tpu.odd"
    operation = "attention"
    platforms = ("tpu",)

    def supports(self, problem, device):
        return Verdict(True, "")

    def forward(self, problem, operands):
        rows = operands["q"].reshape(-1, problem.head_dim)
        if problem.logit_cap:
            rows = rows[:100, :100]
        call = pl.pallas_call(
            scaled, grid=(rows.shape[0] // 256,), name="odd_product",
            out_shape=jax.ShapeDtypeStruct((rows.shape[0], 128), jnp.float32),
            in_specs=[pl.BlockSpec((256, rows.shape[1]), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((256, 128), lambda i: (i, 0)),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )
        if problem.has_sinks:
            raise ValueError("odd has no sinks")
        return call(rows).reshape(*operands["q"].shape[:3], 128).astype(operands["q"].dtype), None
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kanawa.kernels]\nattention.tpu.odd = odd_kernels:Odd\n")
    (tmp_path / "odd_kernels.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = set_host(PluginHost())
    yield
    set_host(before)
    sys.modules.pop("odd_kernels", None)


def test_splash_on_v5p():
    request = ScheduleRequest(kernel="attention.tpu.splash", problem=SMALL, target=parse_target("v5p-8"))
    forward, dkv, dq = schedules(request)
    assert [each.direction for each in (forward, dkv, dq)] == ["forward", "backward", "backward"]
    assert ("fwd" in forward.call, "dkv" in dkv.call, "dq" in dq.call) == (True, True, True)
    # Two heads of 2 x 2 tiles of 1,024, three of which a causal mask leaves; the forward's heads go to either core.
    assert (forward.cores, forward.grid) == (2, (1, 2, 2))
    assert max(region.runs for region in forward.regions if region.depth == 3) == 3
    for call in (forward, dkv, dq):
        assert 0.3 < call.peak_share < 1
        assert call.cycles > call.bundles
        assert call.spills > 0
    # Per tile of 512 x 512: from what two matmuls take at peak up to the length of the whole program.
    assert 1024 <= forward.step_cycles / 4 <= 2343


def test_a_strangers_kernel(stranger):
    request = ScheduleRequest(
        kernel="attention.tpu.odd", problem=SMALL, target=parse_target("v5p-8"), differentiated=False
    )
    (call,) = schedules(request)
    steps = 2048 * 2 // 256
    assert (call.call, call.direction, call.cores, call.grid) == ("odd_product", "forward", 2, (steps // 2,))
    assert call.compiler.startswith("libtpu ")
    assert call.cycles >= steps / 2 * 256 / 4  # each row passes one of a core's four matrix units
    refused = dataclasses.replace(request, problem=dataclasses.replace(SMALL, has_sinks=True))
    with pytest.raises(KernelError, match=r"attention.tpu.odd for train .* on v5p: ValueError: odd has no sinks"):
        schedules(refused)
    with pytest.raises(KernelError, match="on v5p: .*"):
        schedules(dataclasses.replace(request, problem=dataclasses.replace(SMALL, logit_cap=2.0)))
