"""A schedule's time: the compiler's cycles where there are some, rooflines, loops, and collectives that hide."""

import dataclasses

import pytest
from kanawa.plugins import Calibration
from kanawa_parallel.plan.cost.kernel_cost import KernelCost, KernelCosts
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.read.hlo import parse_module

GATHER = """HloModule step
ENTRY main {
  p = bf16[1024,1024] parameter(0)
  w = bf16[1024,256] parameter(1)
  start = (bf16[1024,256], bf16[1024,1024]) all-gather-start(w), replica_groups={{0,1,2,3}}, dimensions={1}
  busy = bf16[1024,1024] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  done = bf16[1024,1024] all-gather-done(start)
  ROOT out = bf16[1024,1024] dot(busy, done), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
BLOCKING = GATHER.replace("all-gather-start(w)", "all-gather(w)").replace("all-gather-done(start)", "copy(start)")
SENT = 3 * 1024 * 256 * 2


def timing(text, device, mesh=None, **kwargs):
    mesh = mesh or {"fsdp": 4}
    return Timing(parse_module(text), mesh, Machine(device, Links.of_devices(device, None, 4), **kwargs))


def program(*lines):
    return "HloModule step\n\nENTRY main {\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n"


def test_a_dot_takes_its_flops_at_peak_or_its_bytes_at_the_memory_bandwidth(island):
    wide = program(
        "a = bf16[4096,4096] parameter(0)",
        "ROOT d = bf16[4096,4096] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    assert timing(wide, island).step().compute == pytest.approx(2 * 4096**3 / island.peak_flops["bfloat16"])
    thin = program(
        "a = bf16[1,4096] parameter(0)",
        "b = bf16[4096,4096] parameter(1)",
        "ROOT d = bf16[1,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    seconds = timing(thin, island).step()
    assert seconds.compute == 0
    assert seconds.memory == pytest.approx((4096**2 + 2 * 4096) * 2 / island.memory_bandwidth)


def test_a_share_of_peak_slows_only_what_the_compiler_does_not_estimate(island):
    wide = program(
        "a = bf16[4096,4096] parameter(0)",
        "ROOT d = bf16[4096,4096] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    full = timing(wide, island)
    half = Calibration(compute_share=0.5)
    assert full.reaching(half).step().total == pytest.approx(2 * full.step().total)
    assert full.step().unestimated == full.step().total
    clocked = dataclasses.replace(island, clock_hz=1e9)
    known = wide.replace(
        "rhs_contracting_dims={0}", 'rhs_contracting_dims={0}, backend_config={"estimated_cycles":"5000"}'
    )
    assert timing(known, clocked).step().total == pytest.approx(5e-6)
    assert timing(known, clocked).reaching(half).step().total == pytest.approx(5e-6)
    assert timing(known, clocked).step().unestimated == 0
    slower = Calibration(estimate_factor=1.2)
    assert timing(known, clocked).reaching(slower).step().total == pytest.approx(6e-6)


def test_a_device_without_a_clock_takes_no_notice_of_cycles(island):
    text = program(
        "a = f32[1000,1000] parameter(0)",
        'ROOT n = f32[1000,1000] negate(a), backend_config={"estimated_cycles":"123456789"}',
    )
    assert timing(text, island).step().total == pytest.approx(8e6 / island.memory_bandwidth)


def test_float32_matmuls_run_narrower_unless_the_device_says_otherwise(island):
    text = program(
        "a = f32[2048,2048] parameter(0)",
        "ROOT d = f32[2048,2048] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    slow = dataclasses.replace(island, peak_flops={"bfloat16": 1e15, "float32": 1e13})
    exact = dataclasses.replace(slow, exact_float32=True)
    assert timing(text, slow).step().compute == pytest.approx(2 * 2048**3 / 1e15)
    assert timing(text, exact).step().compute == pytest.approx(2 * 2048**3 / 1e13)


def test_what_runs_between_start_and_done_hides_a_collective(island):
    quick = dataclasses.replace(island, link_latency_seconds=0.0)
    link = SENT / island.link_bandwidth
    dot = 2 * 1024**3 / island.peak_flops["bfloat16"]
    hidden, blocking = timing(GATHER, quick).step(), timing(BLOCKING, quick).step()
    assert blocking.exposed == {("fsdp", "NVLink"): pytest.approx(link)}
    assert sum(hidden.exposed.values()) == pytest.approx(link - dot)


def test_links_reach_their_share_and_what_is_hidden_has_its_cost(island):
    quick = dataclasses.replace(island, link_latency_seconds=0.0)
    link, dot = SENT / island.link_bandwidth, 2 * 1024**3 / island.peak_flops["bfloat16"]
    half = timing(BLOCKING, quick, calibration=Calibration(link_share=0.5, network_share=0.1)).step()
    assert half.exposed == {("fsdp", "NVLink"): pytest.approx(2 * link)}
    costly = timing(GATHER, quick, calibration=Calibration(hidden_cost=0.5)).step()
    assert costly.compute == pytest.approx(2 * dot + 0.5 * dot)
    launched = timing(BLOCKING, quick, calibration=Calibration(launch_seconds=1e-3)).step()
    assert launched.total > timing(BLOCKING, quick).step().total + 2e-3


def test_latency_is_the_devices(island):
    slow = dataclasses.replace(island, link_latency_seconds=1e-3)
    ((runs, one),) = timing(BLOCKING, slow).communication()
    assert (runs, one.bytes) == (1, SENT)
    assert one.seconds == pytest.approx(SENT / island.link_bandwidth + 1e-3)


def test_a_loops_body_counts_as_often_as_it_runs(island):
    text = """HloModule step
body (s: (s32[], f32[1000,1000])) -> (s32[], f32[1000,1000]) {
  s = (s32[], f32[1000,1000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[1000,1000] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[1000,1000] negate(x)
  ROOT t = (s32[], f32[1000,1000]) tuple(next, y)
}
cond (s: (s32[], f32[1000,1000])) -> pred[] {
  s = (s32[], f32[1000,1000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY main (p: f32[1000,1000]) -> f32[1000,1000] {
  p = f32[1000,1000] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[1000,1000]) tuple(z, p)
  w = (s32[], f32[1000,1000]) while(t), condition=cond, body=body
  ROOT r = f32[1000,1000] get-tuple-element(w), index=1
}
"""
    step = timing(text, island)
    assert step.step().memory == pytest.approx(7 * 8e6 / island.memory_bandwidth, rel=1e-4)
    (row,) = [item for item in step.work() if item.name == "y"]
    assert (row.runs, row.bytes) == (7, 7 * 8e6)


def test_a_conditional_takes_as_long_as_its_longest_branch(island):
    text = """HloModule step
long (a: f32[1000,1000]) -> f32[1000,1000] {
  a = f32[1000,1000] parameter(0)
  b = f32[1000,1000] negate(a)
  ROOT c = f32[1000,1000] negate(b)
}
short (a: f32[1000,1000]) -> f32[1000,1000] {
  a = f32[1000,1000] parameter(0)
  ROOT b = f32[1000,1000] negate(a)
}
ENTRY main (p: f32[1000,1000], q: pred[]) -> f32[1000,1000] {
  p = f32[1000,1000] parameter(0)
  q = pred[] parameter(1)
  ROOT r = f32[1000,1000] conditional(q, p, p), true_computation=long, false_computation=short
}
"""
    step = timing(text, island)
    assert step.step().memory == pytest.approx(2 * 8e6 / island.memory_bandwidth)
    # The other branch isn't run, so what it does counts nowhere.
    assert sum(item.bytes for item in step.work()) == 2 * 8e6
    assert {item.name for item in step.work()} == {"b", "c"}


def test_flops_are_those_of_one_branch(island):
    """As in a ring whose devices compute different blocks, each branch as much as the other."""
    dot = "ROOT d = bf16[512,512] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    branch = "NAME (a: bf16[512,512]) -> bf16[512,512] {\n  a = bf16[512,512] parameter(0)\n  " + dot + "\n}\n"
    text = "HloModule step\n" + branch.replace("NAME", "early") + branch.replace("NAME", "late")
    text += program(
        "p = bf16[512,512] parameter(0)",
        "q = pred[] parameter(1)",
        "ROOT r = bf16[512,512] conditional(q, p, p), true_computation=early, false_computation=late",
    ).removeprefix("HloModule step\n")
    assert timing(text, island).total_flops() == 2 * 512**3


def pipelined(awaited):
    """Returns a loop that gathers for its next iteration; what it gathers is awaited there, and after the loop."""
    state = "(s32[], bf16[1024,1024], (bf16[1024,256], bf16[1024,1024]), bf16[1024,256])"
    gather = "(bf16[1024,256], bf16[1024,1024]) all-gather-start({}), replica_groups={{{{0,1,2,3}}}}, dimensions={{1}}"
    used = "done" if awaited else "x"
    return f"""HloModule step
body (s: {state}) -> {state} {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = bf16[1024,1024] get-tuple-element(s), index=1
  w = bf16[1024,256] get-tuple-element(s), index=3
  sent = (bf16[1024,256], bf16[1024,1024]) get-tuple-element(s), index=2
  done = bf16[1024,1024] all-gather-done(sent)
  start = {gather.format("w")}
  y = bf16[1024,1024] dot(x, {used}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = {state} tuple(next, y, start, w)
}}
cond (s: {state}) -> pred[] {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(10)
  ROOT c = pred[] compare(i, n), direction=LT
}}
ENTRY main (p: bf16[1024,1024], v: bf16[1024,256]) -> bf16[1024,1024] {{
  p = bf16[1024,1024] parameter(0)
  v = bf16[1024,256] parameter(1)
  z = s32[] constant(0)
  first = {gather.format("v")}
  t = {state} tuple(z, p, first, v)
  loop = {state} while(t), condition=cond, body=body
  last = (bf16[1024,256], bf16[1024,1024]) get-tuple-element(loop), index=2
  ROOT end = bf16[1024,1024] all-gather-done(last)
}}
"""


def test_what_is_awaited_in_the_next_iteration_is_hidden_by_one_iteration(island):
    quick = dataclasses.replace(island, link_latency_seconds=0.0)
    link, dot = SENT / island.link_bandwidth, 2 * 1024**3 / island.peak_flops["bfloat16"]
    step = timing(pipelined(awaited=True), quick).step()
    # The first is awaited at once, the last after its iteration's dot: eleven in all.
    assert sum(step.exposed.values()) == pytest.approx(link + 10 * (link - dot), rel=1e-3)
    assert step.compute == pytest.approx(10 * dot)


def test_what_a_call_starts_its_caller_may_await(island):
    quick = dataclasses.replace(island, link_latency_seconds=0.0)
    gather = "(bf16[1024,256], bf16[1024,1024]) all-gather-start(a), replica_groups={{0,1,2,3}}, dimensions={1}"
    text = f"HloModule step\nbegin (a: f32[]) -> f32[] {{\n  a = bf16[1024,256] parameter(0)\n  ROOT s = {gather}\n}}\n"
    text += program(
        "w = bf16[1024,256] parameter(0)",
        "start = (bf16[1024,256], bf16[1024,1024]) call(w), to_apply=begin",
        "ROOT done = bf16[1024,1024] all-gather-done(start)",
    ).removeprefix("HloModule step\n")
    assert sum(timing(text, quick).step().exposed.values()) == pytest.approx(SENT / island.link_bandwidth)


def test_a_collective_in_a_call_counts_once(island):
    quick = dataclasses.replace(island, link_latency_seconds=0.0)
    text = "HloModule step\nf (a: f32[]) -> f32[] {\n  a = bf16[1024,256] parameter(0)\n"
    text += "  ROOT g = bf16[1024,1024] all-gather(a), replica_groups={{0,1,2,3}}, dimensions={1}\n}\n"
    text += program("w = bf16[1024,256] parameter(0)", "ROOT r = bf16[1024,1024] call(w), to_apply=f")
    step = timing(text, quick)
    assert sum(step.step().exposed.values()) == pytest.approx(SENT / island.link_bandwidth)
    assert [(runs, each.bytes) for runs, each in step.communication()] == [(1, SENT)]


@pytest.mark.parametrize("thread", ["", 'async_execution_thread="host", '])
def test_what_is_started_asynchronously_takes_the_cores_but_not_where_the_host_runs_it(island, thread):
    text = "HloModule step\nf (a: f32[]) -> f32[] {\n  a = f32[1000,1000] parameter(0)\n"
    text += "  ROOT g = f32[1000,1000] negate(a)\n}\n"
    text += program(
        "w = f32[1000,1000] parameter(0)",
        f"s = ((f32[1000,1000]), f32[1000,1000]) async-start(w), {thread}calls=f",
        "ROOT r = f32[1000,1000] async-done(s), calls=f",
    ).removeprefix("HloModule step\n")
    seconds = 0 if thread else 8e6 / island.memory_bandwidth
    assert timing(text, island).step().total == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("operands", "peak"),
    [
        (("f8e4m3fn", "f8e4m3fn"), "float8_e4m3fn"),
        (("f8e5m2", "f8e4m3fn"), "float8_e4m3fn"),
        (("f8e4m3fn", "bf16"), "bfloat16"),
        (("s8", "s8"), "int8"),
        (("s4", "s4"), "int8"),
        (("s32", "s32"), "bfloat16"),
    ],
)
def test_matmuls_run_at_the_rate_of_their_wider_operand(island, operands, peak):
    device = dataclasses.replace(island, peak_flops={"bfloat16": 1e13, "float8_e4m3fn": 2e13, "int8": 4e13})
    text = program(
        f"a = {operands[0]}[4096,4096] parameter(0)",
        f"b = {operands[1]}[4096,4096] parameter(1)",
        "ROOT d = bf16[4096,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    assert timing(text, device).step().compute == pytest.approx(2 * 4096**3 / device.peak_flops[peak])


def test_a_fused_kernels_tables_of_integers_are_no_operands_of_its_matmuls(island):
    text = program(
        "table = s8[64] parameter(0)",
        "q = bf16[64,1024,128] parameter(1)",
        'ROOT k = bf16[64,1024,128] custom-call(table, table, q), custom_call_target="cudnn"',
    )
    cost = KernelCosts((KernelCost("nowhere", 1e12, (("cudnn", 2.0),)),))
    both = dataclasses.replace(island, peak_flops={"bfloat16": 1e15, "int8": 2e15})
    timed = Timing(parse_module(text), {}, Machine(both, Links.of_devices(both, None, 4), cost))
    assert timed.step().compute == pytest.approx(2e12 / 1e15)


def test_a_fused_kernel_reaches_the_share_of_its_operation(island):
    text = program(
        "q = bf16[64,1024,128] parameter(0)",
        "ROOT k = bf16[64,1024,128] custom-call(q), "
        'custom_call_target="cudnn", metadata={op_name="step/attention.gpu.cudnn~0123abcd/cudnn"}',
    )
    cost = KernelCosts((KernelCost("attention.gpu.cudnn~0123abcd", 1e12, (("cudnn", 2.0),)),))
    timed = Timing(parse_module(text), {}, Machine(island, Links.of_devices(island, None, 4), cost))
    shares = Calibration(compute_share=0.8, kernel_shares={"attention": 0.4, "grouped_matmul": 0.1})
    assert timed.reaching(shares).step().compute == pytest.approx(2e12 / 1e15 / 0.4)
    assert timed.reaching(dataclasses.replace(shares, kernel_shares={})).step().compute == pytest.approx(2e12 / 8e14)
