"""Collectives in every form that compilers write them, and the ring formulas against sending the pieces around."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.cost_terms import sent_bytes
from kanawa_parallel.plan.cost.collectives import collective, ends
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.read.hlo import parse_module

MESH = {"data": 2, "fsdp": 4}
GROUPS = "replica_groups=[2,4]<=[8]"
BYTES = 8 * 16 * 4


def seen(island, line, inside="", extra=()):
    entry = "\n".join(f"  {each}" for each in ("p = f32[8,16] parameter(0)", *extra, line))
    module = parse_module(f"HloModule m\n{inside}\nENTRY main (p: f32[]) -> f32[] {{\n{entry}\n}}\n")
    scope = module.computations["main"]
    return collective(module, scope, scope.by_name["r"], MESH, Links.of_devices(island, None, 8))


@pytest.mark.parametrize(
    ("opcode", "sent"),
    [
        ("all-gather", 3 * BYTES),
        ("all-reduce", 2 * BYTES * 3 / 4),
        ("reduce-scatter", BYTES * 3 / 4),
        ("all-to-all", BYTES * 3 / 4),
        ("ragged-all-to-all", BYTES * 3 / 4),
        ("collective-broadcast", BYTES * 3 / 4),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_kind_alone_or_started(island, opcode, sent, asynchronous):
    suffix = "-start" if asynchronous else ""
    one = seen(island, f"r = f32[8,64] {opcode}{suffix}(p), channel_id=3, {GROUPS}, dimensions={{1}}")
    assert (one.kind, one.bytes, one.members, one.axes, one.starts) == (opcode, sent, 4, ("fsdp",), asynchronous)
    assert one.channel == "3"
    assert one.seconds == pytest.approx(sent / island.link_bandwidth + island.link_latency_seconds)


def test_a_permute_sends_what_it_has_to_one_neighbour(island):
    one = seen(island, "r = f32[8,16] collective-permute(p), source_target_pairs={{0,1},{1,0}}")
    assert (one.bytes, one.members, one.axes) == (BYTES, 2, ("fsdp",))


@pytest.mark.parametrize("wrapper", ["fusion", "fusion-start", "async-start"])
def test_a_collective_inside_what_wraps_it(island, wrapper):
    inside = f"f (a: f32[]) -> f32[] {{\n  a = f32[8,16] parameter(0)\n  ROOT g = f32[8,64] all-gather(a), {GROUPS}\n}}"
    one = seen(island, f"r = f32[8,64] {wrapper}(p), calls=f", inside)
    assert (one.kind, one.bytes, one.starts) == ("all-gather", 3 * BYTES, wrapper.endswith("-start"))


def test_collectives_of_one_call_go_out_together(island):
    inside = "g (a: f32[]) -> f32[] {\n  a = f32[8,16] parameter(0)\n"
    inside += f"  ROOT x = f32[8,16] all-reduce(a), {GROUPS}\n}}\n"
    inside += f"f (a: f32[]) -> f32[] {{\n  a = f32[8,16] parameter(0)\n  b = f32[8,64] all-gather(a), {GROUPS}\n"
    inside += "  ROOT y = f32[8,16] fusion(a), calls=g\n}"
    one = seen(island, "r = f32[8,64] async-start(p), calls=f", inside)
    assert one.bytes == 3 * BYTES + 2 * BYTES * 3 / 4
    assert one.seconds == pytest.approx(one.bytes / island.link_bandwidth + 2 * island.link_latency_seconds)


def test_what_a_ragged_exchange_writes_into_is_not_sent(island):
    one = seen(island, f"r = f32[8,64] ragged-all-to-all(p, w), {GROUPS}", extra=["w = f32[800,16] parameter(1)"])
    assert one.bytes == BYTES * 3 / 4


def test_of_rows_that_go_back_from_a_room_only_as_many_are_sent_as_have_a_place(island):
    one = seen(island, f"r = f32[8,8] ragged-all-to-all(p, w), {GROUPS}", extra=["w = f32[8,8] parameter(1)"])
    assert one.bytes == BYTES / 2 * 3 / 4


@pytest.mark.parametrize("quoted", ["", '"'])
def test_a_send_between_devices_goes_over_their_link(island, quoted):
    pairs = f"frontend_attributes={{_xla_send_recv_source_target_pairs={quoted}{{{{0,1}},{{1,2}}}}{quoted}}}"
    one = seen(
        island, f"r = (f32[8,16], u32[], token[]) send(p, t), channel_id=2, {pairs}", extra=["t = token[] after-all()"]
    )
    assert (one.kind, one.bytes, one.starts) == ("send", BYTES, True)
    assert seen(island, "r = (f32[8,16], u32[], token[]) send(p, t), channel_id=2, is_host_transfer=true") is None


def test_a_fusion_named_as_a_start_is_waited_for(island):
    inside = f"f (a: f32[]) -> f32[] {{\n  a = f32[8,16] parameter(0)\n  ROOT g = f32[8,64] all-gather(a), {GROUPS}\n}}"
    text = f"HloModule m\n{inside}\nENTRY main (p: f32[]) -> f32[] {{\n  p = f32[8,16] parameter(0)\n"
    text += "  async-collective-start.1 = f32[8,64] fusion(p), kind=kCustom, calls=f\n"
    text += "  ROOT async-collective-done.1 = f32[8,64] fusion(async-collective-start.1), calls=f\n}\n"
    module = parse_module(text)
    scope = module.computations["main"]
    begin, end = scope.instructions[1:]
    assert collective(module, scope, begin, MESH, Links.of_devices(island, None, 8)).starts
    assert ends(end) and not ends(begin)


def test_an_all_reduce_of_which_each_keeps_its_slice_is_a_reduce_scatter(island):
    name = "all-reduce-scatter.1"
    inside = (
        f"{name} (a: f32[]) -> f32[] {{\n  a = f32[8,16] parameter(0)\n  ROOT g = f32[8,16] all-reduce(a), {GROUPS}\n}}"
    )
    one = seen(island, f"r = f32[2,16] fusion(p), kind=kCustom, calls={name}", inside)
    assert (one.kind, one.bytes) == ("reduce-scatter", BYTES * 3 / 4)


@pytest.mark.parametrize(
    "line",
    [
        "r = f32[8,16] negate(p)",
        "r = f32[8,16] all-gather-done(p)",
        "r = f32[8,16] all-reduce(p), replica_groups={{0},{1},{2},{3}}",
        "r = f32[8,16] fusion(p), calls=lost",
        "r = f32[8,16] collective-permute(p), source_target_pairs={}",
    ],
    ids=["arithmetic", "a wait", "groups of one", "a missing body", "nobody to send to"],
)
def test_what_communicates_nothing(island, line):
    assert seen(island, line) is None


def test_between_islands_the_network_limits(island):
    one = seen(island, "r = f32[8,16] all-reduce(p), replica_groups=[1,16]<=[16]")
    assert one.axes == ()
    far = collective_over(island, 16)
    assert (far.link, far.axes) == ("network", ("data",))


def collective_over(island, devices):
    text = "HloModule m\nENTRY main (p: f32[]) -> f32[] {\n  p = f32[8,16] parameter(0)\n"
    text += f"  ROOT r = f32[8,16] all-reduce(p), replica_groups=[{devices // 2},2]<=[2,{devices // 2}]T(1,0)\n}}\n"
    module = parse_module(text)
    scope = module.computations["main"]
    return collective(
        module, scope, scope.by_name["r"], {"data": 2, "fsdp": devices // 2}, Links.of_devices(island, None, devices)
    )


def ring_all_gather(members, piece):
    """Returns bytes the first member sends until everybody has everything: each hop passes on one piece."""
    have = [{m} for m in range(members)]
    sent = 0
    for step in range(members - 1):
        passed = [(m - step) % members for m in range(members)]
        sent += piece
        for m in range(members):
            have[(m + 1) % members].add(passed[m])
    assert all(len(each) == members for each in have)
    return sent


def ring_reduce_scatter(members, whole):
    """Returns bytes the first member sends until each has the sum of its own part of the array."""
    parts = np.ones((members, members))
    sent = 0.0
    for step in range(members - 1):
        moving = [(m - step) % members for m in range(members)]
        values = [parts[m, moving[m]] for m in range(members)]
        sent += whole / members
        for m in range(members):
            parts[(m + 1) % members, moving[m]] += values[m]
    assert sum(parts[m, (m + 1) % members] == members for m in range(members)) == members
    return sent


@given(members=st.integers(2, 12), size=st.integers(1, 10**6))
def test_formulas_are_what_a_ring_sends(members, size):
    gathered, scattered = ring_all_gather(members, size), ring_reduce_scatter(members, size)
    assert sent_bytes("all-gather", size, members) == pytest.approx(gathered)
    assert sent_bytes("reduce-scatter", size, members) == pytest.approx(scattered)
    # A sum that everybody gets: scattered, then each part gathered.
    both = scattered + ring_all_gather(members, size / members)
    assert sent_bytes("all-reduce", size, members) == pytest.approx(both)
    assert sent_bytes("all-to-all", size, members) == pytest.approx(size - size / members)
