"""Bytes that an instruction moves: operands and results, of slices the slices, of updates the updates."""

import pytest
from kanawa_parallel.plan.cost.traffic import FREE, bytes_moved
from kanawa_parallel.plan.read.hlo import parse_module

BIG, PART, F32 = 1000 * 64, 64, 4


def moved(*lines, inside="", ask="r"):
    entry = "\n".join(f"  {line}" for line in lines)
    module = parse_module(f"HloModule m\n{inside}\nENTRY main (p: f32[]) -> f32[] {{\n{entry}\n}}\n")
    scope = module.computations["main"]
    return bytes_moved(module, scope, scope.by_name[ask])


def fused(*lines):
    body = "\n".join(f"  {line}" for line in lines)
    return f"f (a: f32[]) -> f32[] {{\n{body}\n}}\n"


STACK = "p = f32[1000,64] parameter(0)"
INDEX = "i = s32[] parameter(1)"
UPDATE = "u = f32[1,64] parameter(2)"


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("ROOT r = f32[1000,64] negate(p)", 2 * BIG),
        ("ROOT r = f32[1000,64] add(p, p)", 3 * BIG),
        ("ROOT r = f32[1,64] dynamic-slice(p, i, i), dynamic_slice_sizes={1,64}", 2 * PART),
        ("ROOT r = f32[10,64] slice(p), slice={[0:10], [0:64]}", 2 * 10 * PART),
        ("ROOT r = f32[3,64] gather(p, i), offset_dims={1}", 2 * 3 * PART),
        ("ROOT r = f32[1000,64] dynamic-update-slice(p, u, i, i)", 2 * PART),
        ("ROOT r = f32[1000,64] broadcast(i), dimensions={}", BIG),
        ("ROOT r = f32[1000,64] iota(), iota_dimension=0", BIG),
        ("ROOT r = bf16[1000,64] convert(p)", BIG + BIG / 2),
    ],
    ids=lambda value: value.split()[3].partition("(")[0] if isinstance(value, str) else None,
)
def test_plain_instructions(line, numbers):
    assert moved(STACK, INDEX, UPDATE, line) == numbers * F32


@pytest.mark.parametrize("opcode", sorted(FREE - {"parameter", "constant"}))
def test_names_loops_and_halves_of_asynchronous_pairs_move_nothing(opcode):
    assert moved(STACK, f"ROOT r = f32[1000,64] {opcode}(p)") == 0


@pytest.mark.parametrize("opcode", ["all-gather-start", "all-reduce-done", "copy-start"])
def test_what_only_starts_or_waits_moves_nothing_itself(opcode):
    assert moved(STACK, f"ROOT r = f32[1000,64] {opcode}(p)") == 0


def test_a_fusion_reads_its_operands_once_however_often_they_are_used():
    inside = fused(
        "a = f32[1000,64] parameter(0)", "b = f32[1000,64] multiply(a, a)", "ROOT c = f32[1000,64] add(b, a)"
    )
    assert moved(STACK, "ROOT r = f32[1000,64] fusion(p), kind=kLoop, calls=f", inside=inside) == 2 * BIG * F32


def test_a_fusion_that_slices_a_stack_reads_the_slice():
    inside = fused(
        "a = f32[1000,64] parameter(0)",
        "b = s32[] parameter(1)",
        "c = f32[1,64] dynamic-slice(a, b, b), dynamic_slice_sizes={1,64}",
        "ROOT d = f32[1,64] negate(c)",
    )
    line = "ROOT r = f32[1,64] fusion(p, i), kind=kLoop, calls=f"
    assert moved(STACK, INDEX, line, inside=inside) == 2 * PART * F32 + 4


def test_a_slice_through_a_bitcast_is_still_a_slice():
    inside = fused(
        "a = f32[1000,64] parameter(0)",
        "b = s32[] parameter(1)",
        "v = f32[1000,8,8] bitcast(a)",
        "ROOT c = f32[1,8,8] dynamic-slice(v, b, b, b), dynamic_slice_sizes={1,8,8}",
    )
    line = "ROOT r = f32[1,8,8] fusion(p, i), kind=kLoop, calls=f"
    assert moved(STACK, INDEX, line, inside=inside) == 2 * PART * F32 + 4


def test_what_is_widened_and_then_sliced_is_read_as_narrow_as_it_is():
    inside = fused(
        "a = bf16[1000,64] parameter(0)",
        "b = s32[] parameter(1)",
        "w = f32[1000,64] convert(a)",
        "t = f32[64,1000] transpose(w), dimensions={1,0}",
        "ROOT c = f32[64,1] dynamic-slice(t, b, b), dynamic_slice_sizes={64,1}",
    )
    line = "ROOT r = f32[64,1] fusion(h, i), kind=kLoop, calls=f"
    assert moved("h = bf16[1000,64] parameter(0)", INDEX, line, inside=inside) == PART * (2 + 4) + 4


def test_a_narrow_stack_updated_in_wide_arithmetic_is_written_narrow():
    inside = fused(
        "a = bf16[1000,64] parameter(0)",
        "b = s32[] parameter(1)",
        "u = f32[1,64] parameter(2)",
        "w = f32[1000,64] convert(a)",
        "d = f32[1000,64] dynamic-update-slice(w, u, b, b)",
        "ROOT e = bf16[1000,64] convert(d)",
    )
    line = "ROOT r = bf16[1000,64] fusion(h, i, u), kind=kLoop, calls=f"
    assert moved("h = bf16[1000,64] parameter(0)", INDEX, UPDATE, line, inside=inside) == PART * (4 + 2) + 4


def test_a_scatter_moves_its_updates_not_the_array():
    line = "ROOT r = f32[1000,64] scatter(p, n, v), to_apply=add"
    assert moved(STACK, "n = s32[3] parameter(1)", "v = f32[3,64] parameter(2)", line) == 3 * 3 * PART * 4 + 3 * 4


@pytest.mark.parametrize("opcode", ["copy", "fusion"])
def test_what_lies_in_the_hosts_memory_is_not_the_devices_traffic(opcode):
    inside = fused("a = f32[1000,64] parameter(0)", "ROOT c = f32[1000,64]{1,0:S(5)} copy(a)")
    line = f"ROOT r = f32[1000,64]{{1,0:S(5)}} {opcode}(p), calls=f"
    assert moved(STACK, line, inside=inside if opcode == "fusion" else "") == BIG * F32


def test_claiming_memory_moves_nothing():
    assert moved('ROOT r = f32[1000,64] custom-call(), custom_call_target="AllocateBuffer"') == 0


def test_what_is_sliced_and_used_whole_too_is_read_whole():
    inside = fused(
        "a = f32[1000,64] parameter(0)",
        "b = s32[] parameter(1)",
        "c = f32[1,64] dynamic-slice(a, b, b), dynamic_slice_sizes={1,64}",
        "n = f32[1000,64] negate(a)",
        "ROOT t = (f32[1,64], f32[1000,64]) tuple(c, n)",
    )
    line = "ROOT r = (f32[1,64], f32[1000,64]) fusion(p, i), kind=kLoop, calls=f"
    assert moved(STACK, INDEX, line, inside=inside) == (BIG + PART + BIG) * F32 + 4


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_fusion_that_updates_in_place_writes_the_update(wrapped):
    root = "d = f32[1000,64] dynamic-update-slice(a, u, b, b)"
    lines = [root, "ROOT e = f32[1000,64] bitcast(d)"] if wrapped else [f"ROOT {root}"]
    inside = fused("a = f32[1000,64] parameter(0)", "b = s32[] parameter(1)", "u = f32[1,64] parameter(2)", *lines)
    line = "ROOT r = f32[1000,64] fusion(p, i, u), kind=kLoop, calls=f"
    assert moved(STACK, INDEX, UPDATE, line, inside=inside) == 2 * PART * F32 + 4


def test_a_fusion_within_a_fusion_is_seen_through():
    inner = "g (x: f32[], y: s32[]) -> f32[] {\n  x = f32[1000,64] parameter(0)\n  y = s32[] parameter(1)\n"
    inner += "  ROOT s = f32[1,64] dynamic-slice(x, y, y), dynamic_slice_sizes={1,64}\n}\n"
    outer = fused(
        "a = f32[1000,64] parameter(0)",
        "b = s32[] parameter(1)",
        "c = f32[1,64] fusion(a, b), kind=kLoop, calls=g",
        "ROOT d = f32[1,64] negate(c)",
    )
    line = "ROOT r = f32[1,64] fusion(p, i), kind=kLoop, calls=f"
    assert moved(STACK, INDEX, line, inside=inner + outer) == 2 * PART * F32 + 4


def test_several_results_are_all_written():
    inside = fused(
        "a = f32[1000,64] parameter(0)",
        "b = f32[1000,64] negate(a)",
        "c = bf16[1000,64] convert(b)",
        "ROOT t = (f32[1000,64], bf16[1000,64]) tuple(b, c)",
    )
    line = "ROOT r = (f32[1000,64], bf16[1000,64]) fusion(p), kind=kLoop, calls=f"
    assert moved(STACK, line, inside=inside) == BIG * (4 + 4 + 2)


def test_a_fusion_whose_body_is_missing_counts_as_what_stands_there():
    assert moved(STACK, "ROOT r = f32[1000,64] fusion(p), kind=kLoop, calls=lost") == 2 * BIG * F32
