"""A kernel's cycles are those of the nearest recorded problem; a call finds its own by its name."""

import dataclasses

import pytest
from kanawa.composition.target import parse_target
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.masks import CAUSAL
from kanawa_parallel.plan.cost.kernel_cost import KernelCost, KernelCosts, recorded_cycles
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing, call_cycles
from kanawa_parallel.plan.read.hlo import parse_instruction, parse_module

PROBLEM = AttentionProblem(
    batch=4, q_length=4096, kv_length=4096, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128,
    dtype="bfloat16", mask=CAUSAL, scale=1.0,
)  # fmt: skip
ABACUS = """
from kanawa.kernels import Kernel
from kanawa.kernels.verdict import SUPPORTED
from kanawa.plugins import DeviceSpec, RecordedCycles, hookimpl


class Swift(Kernel):
    name = "attention.abacus.swift"
    operation = "attention"
    compiled_calls = ((r"swift\\w*_d", 5), (r"swift", 2))

    def supports(self, problem, device):
        return SUPPORTED

    def forward(self, problem, operands):
        return None, None


@hookimpl
def kanawa_device_specs():
    sizes = ("memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
    one = dict.fromkeys(sizes, 1)
    return [DeviceSpec(name=name, platform="abacus", chips_per_host=1, source="here", clock_hz=clock, **one)
            for name, clock in (("abacus", 1e9), ("clockless", None))]


@hookimpl
def kanawa_recorded_cycles():
    wide = dict(head_dim=128, q_length=4096, dtype="bfloat16")
    rows = (wide, 100.0, 10.0), ({**wide, "head_dim": 64}, 50.0, 20.0), ({**wide, "dtype": "float32"}, 100.0, 90.0)
    return [RecordedCycles(kernel="attention.abacus.swift", device="abacus", compiler="beads 1", problem=problem,
                           matmul_flops=flops, cycles={"swift_fwd_residuals": cycles})
            for problem, flops, cycles in rows]
"""


@pytest.fixture
def abacus(stranger):
    stranger(
        "abacus_kit", ABACUS, plugins=["abacus = abacus_kit"], kernels=["attention.abacus.swift = abacus_kit:Swift"]
    )


def choice(problem=PROBLEM, kernel="attention.abacus.swift"):
    flops = problem.matmul_flops
    return KernelChoice("attention", problem.describe(), kernel, matmul_flops=flops, local_problem=problem)


def test_the_nearest_recorded_problem_is_scaled_by_its_matmuls(abacus):
    device = parse_target("abacus-1").device
    narrow = choice(dataclasses.replace(PROBLEM, head_dim=72))
    cycles = recorded_cycles([choice(), narrow], device)
    assert cycles[choice().scope] == (("swift_fwd_residuals", choice().matmul_flops * 10 / 100),)
    assert cycles[narrow.scope] == (("swift_fwd_residuals", narrow.matmul_flops * 20 / 50),)


def test_a_device_without_a_clock_and_kernels_of_any_platform_have_no_cycles(abacus):
    assert recorded_cycles([choice(kernel="attention.any.reference")], parse_target("abacus-1").device) == {}
    assert recorded_cycles([choice()], parse_target("clockless-1").device) == {}


COST = KernelCost("attention.abacus.swift~0123abcd", 1e12, ((r"swift\w*_d", 5), (r"swift", 2)),
                  (("swift_fwd_residuals", 1000.0), ("swift_dq", 3000.0), ("gmm", 10.0), ("gmm", 20.0)))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cycles"),
    [
        ("swift_fwd_residuals.7", 1000.0),
        ("swift_dq.1", 3000.0),
        # What no call was scheduled as is what does the same part of the work.
        ("swift_fwd_no_residuals.2", 1000.0),
        ("swift_both_dkv", 3000.0),
        ("gmm.3", 15.0),
        ("copy.1", None),
    ],
)
def test_a_call_is_known_by_its_name_or_its_part_of_the_work(name, cycles):
    call = parse_instruction(f'  %{name} = bf16[8] custom-call(%q), custom_call_target="tpu_custom_call"')
    assert call_cycles(KernelCosts((COST,)), call) == cycles
    assert call_cycles(KernelCosts((dataclasses.replace(COST, cycles=()),)), call) is None


@pytest.mark.parametrize(("cycles", "compute", "memory"), [(5e6, 5e6 / 1e9, 0), (5e4, 0, 2 * 2**20 * 2 / 1e9)])
def test_a_call_takes_its_schedule_or_its_bytes(abacus, cycles, compute, memory):
    device = dataclasses.replace(parse_target("abacus-1").device, memory_bandwidth=1e9, peak_flops={"bfloat16": 1.0})
    text = (
        "HloModule m, is_scheduled=true\n\nENTRY %main (q: bf16[1024,1024]) -> bf16[1024,1024] {\n"
        "  %q = bf16[1024,1024] parameter(0)\n"
        '  ROOT %swift_dq.1 = bf16[1024,1024] custom-call(%q), custom_call_target="tpu_custom_call"\n}\n'
    )
    costs = KernelCosts((dataclasses.replace(COST, cycles=(("swift_dq", cycles),)),))
    spent = Timing(parse_module(text), {}, Machine(device, Links.of_devices(device, None, 1), costs)).step()
    assert (spent.compute, spent.memory, spent.unestimated) == (pytest.approx(compute), pytest.approx(memory), 0)
