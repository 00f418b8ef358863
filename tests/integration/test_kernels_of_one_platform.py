"""Choosing kernels for one platform imports no other platform's code, in a fresh interpreter."""

import json
import subprocess
import sys

import pytest

PROBE = """
import dataclasses, json, sys
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa_kernel_tools.examples.attention import BASE
from kanawa.kernels.attention.problem import ATTENTION
from kanawa.kernels.selection import select

platform, kind = sys.argv[1:]
served = dataclasses.replace(BASE, mode="decode", q_length=1, has_kv_lengths=True, page_size=16)
with use_plan(ExecutionPlan(platform=platform, device_kind=kind)):
    for problem in (dataclasses.replace(BASE, dtype="bfloat16"), served):
        select(ATTENTION, problem)
print(json.dumps(sorted(sys.modules)))
"""
PLATFORMS = {
    "gpu": ("NVIDIA H100 80GB HBM3", ("backends_tpu", "backends_neuron", "backends_cpu")),
    "tpu": ("TPU v5", ("backends_gpu", "backends_neuron", "backends_cpu")),
    "cpu": ("cpu", ("backends_gpu", "backends_tpu", "backends_neuron")),
}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_other_platforms_code_stays_out(platform):
    kind, foreign = PLATFORMS[platform]
    command = [sys.executable, "-c", PROBE, platform, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    assert "kanawa.kernels.attention.reference" in modules
    others = tuple(f"kanawa_{package}.kernels" for package in foreign)
    assert not [module for module in modules if module.startswith(others)]
    assert platform == "tpu" or "mosaic.tpu" not in " ".join(modules)
