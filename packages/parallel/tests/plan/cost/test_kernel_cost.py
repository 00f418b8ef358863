"""A fused kernel costs what its class says its calls do, on the problem of the scope that they stand in."""

import dataclasses

import pytest
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.masks import CAUSAL, sliding_window
from kanawa_parallel.cost_terms import filled
from kanawa_parallel.plan.cost.kernel_cost import KernelCost, KernelCosts
from kanawa_parallel.plan.cost.timing import call_cycles, call_flops
from kanawa_parallel.plan.read.hlo import parse_instruction

CALLS = ((r"both_backward", 5), (r"swift\w*_dq", 3), (r"swift", 2))
WHOLE = AttentionProblem(
    batch=4, q_length=4096, kv_length=4096, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128,
    dtype="bfloat16", mask=CAUSAL, scale=1.0,
)  # fmt: skip
LOCAL = dataclasses.replace(WHOLE, mask=sliding_window(128))
STRANGER = """
from kanawa.kernels import Kernel
from kanawa.kernels.verdict import SUPPORTED

class Swift(Kernel):
    name = "attention.abacus.swift"
    operation = "attention"
    compiled_calls = ((r"both_backward", 5), (r"swift\\w*_dq", 3), (r"swift", 2))

    def supports(self, problem, device):
        return SUPPORTED

    def forward(self, problem, operands):
        return None, None
"""


def choice(problem, kernel="attention.abacus.swift"):
    return KernelChoice("attention", problem.describe(), kernel, matmul_flops=problem.matmul_flops)


def cost(problem):
    made = choice(problem)
    return KernelCost(made.scope, made.matmul_flops, CALLS)


def call(name, scope="", opcode="custom-call", target="tpu_custom_call"):
    op_name = f"jit(step)/transpose(jvp(stack))/shard_map/{scope}/{name}"
    return parse_instruction(
        f'  %{name}.3 = bf16[8] {opcode}(%q), custom_call_target="{target}", metadata={{op_name="{op_name}"}}'
    )


@pytest.mark.parametrize(
    ("name", "matmuls"), [("swift_fwd", 2), ("swift_mha_dq", 3), ("both_backward", 5), ("copy", 0)]
)
def test_a_call_costs_the_matmuls_its_kernel_says(name, matmuls):
    pairs = 4 * 32 * 4096 * (4096 + 1) / 2
    costs = KernelCosts((cost(WHOLE),))
    assert call_flops(costs, call(name, choice(WHOLE).scope)) == pytest.approx(matmuls * 2 * pairs * 128)


def test_the_scope_tells_windowed_calls_from_whole_ones():
    """Layers of either kind call the same kernel on the same shapes: only their scopes differ."""
    costs = KernelCosts((cost(WHOLE), cost(LOCAL)))
    whole, local = (call_flops(costs, call("swift_fwd", choice(problem).scope)) for problem in (WHOLE, LOCAL))
    assert local == 2 * LOCAL.matmul_flops
    assert whole / local == pytest.approx(4096 * 4097 / 2 / (4096 * 128 - 127 * 128 / 2))


def test_a_call_outside_of_any_scope_is_the_first_kernels_of_its_name():
    assert call_flops(KernelCosts((cost(WHOLE), cost(LOCAL))), call("swift_fwd")) == 2 * WHOLE.matmul_flops


def test_what_is_no_kernels_call_costs_nothing():
    costs = KernelCosts((cost(WHOLE),))
    assert call_flops(costs, call("swift_fwd", opcode="fusion")) == 0
    assert call_flops(costs, call("allocate", target="AllocateBuffer")) == 0
    assert call_flops(KernelCosts(), call("swift_fwd")) == 0


def test_what_a_compiler_calls_for_a_primitive_in_a_kernels_scope_costs_nothing():
    """The scope of "swift" holds a jitted function of that name: an index checked for a gather is no call of it."""
    scope = f"{choice(WHOLE).scope}/jit(swift)"
    check = call("gather", scope, target="AssumeGatherIndicesInBound")
    costs = KernelCosts((cost(WHOLE),))
    assert call_flops(costs, check) == 0
    assert call_cycles(KernelCosts((dataclasses.replace(cost(WHOLE), cycles=(("swift", 10.0),)),)), check) is None
    assert call_flops(costs, call("pallas_call", scope)) == 2 * WHOLE.matmul_flops


def test_of_room_that_is_partly_filled_a_kernel_computes_the_rows_expected():
    named = cost(WHOLE)
    costs = KernelCosts((dataclasses.replace(named, cycles=(("swift", 10.0),)),))
    inside = call("swift", f"{filled(2, 3)}/{named.scope}")
    assert call_flops(costs, inside) == pytest.approx(2 * WHOLE.matmul_flops * 2 / 3, rel=1e-3)
    assert call_cycles(costs, inside) == pytest.approx(10 * 2 / 3, rel=1e-3)


def test_a_strangers_kernel_says_itself_what_its_calls_cost(stranger):
    stranger("swift", STRANGER, kernels=["attention.abacus.swift = swift:Swift"])
    known = choice(WHOLE)
    unknown = choice(WHOLE, "attention.abacus.uninstalled")
    matmul_free = dataclasses.replace(known, matmul_flops=0.0)
    costs = KernelCosts.of_choices([unknown, matmul_free, known, choice(WHOLE, "ring")])
    assert costs == KernelCosts((cost(WHOLE),))
