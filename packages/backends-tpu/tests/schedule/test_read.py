"""Schedules read from a small program in the form that libtpu 0.0.52 writes: a grid of 2 x 4, its first core's half."""

import dataclasses

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import KernelError
from kanawa_backends_tpu.schedule import bundles, units
from kanawa_backends_tpu.schedule.read import Call, read_schedule, schedule_from_texts
from kanawa_backends_tpu.schedule.walk import walk

SLOTS = ["{}"] * 4
#: Bundles as (label, text). The grid's 8 steps run in rounds 0 to 7; each row of 4 begins with a first step, table
#: `#allocation3` tells which steps have a tile, and the index that counts the columns goes through a spill.
BUNDLES = [
    "{ %s1_s0 = sld [smem:[#allocation0]] /* megacore core id :: core id */  ;;  %s2_s1 = smov.u32 0 }",
    "{ %s3_s2 = smov.u32 0 /* copy for cssa */  ;;  %s10_s0 = smov.u32 0 }",
    # 2: the loop
    "{ %s4_s1 = sphi %s2_s1, %s9_s1  ;;  %s5_s2 = sphi %s3_s2, %s12_s2 } /* Start region 7 */",
    "{ %10 = sst [smem:[#allocation9_spill]] %s5_s2 }",
    "{ %s6_s3 = sld [smem:[#allocation9_spill]] }",
    "{ %p1_p0 = scmp.ne.s32.totalorder %s6_s3, 0 }",
    "{ %11 = sbr.rel (%p1_p0) target = $region20 }",
    *SLOTS,
    # 11, 12: the first step of a row
    "{ %12 = vst [vmem:[#allocation5] sm:$0xff] /*vst_source=*/%v1_v0 }",
    "{ %13 = vst [vmem:[#allocation5 + $0x8] sm:$0xff] /*vst_source=*/%v1_v0 }",
    "{ %s7_s4 = sld [smem:[#allocation3 + %s4_s1]] } /* Start/End empty region 20 */",
    "{ %p2_p1 = scmp.le.s32.totalorder %s7_s4, 0 }",
    "{ %14 = sbr.rel (%p2_p1) target = $region30 }",
    *SLOTS,
    # 20 to 22: a tile
    "{ %15 = vmatmul.bf16.gmra.mxu0 %v2_v1 /* the text of a comment\ngoes on */ }",
    "{ %16 = vmatmul.bf16.gmra.mxu0 %v3_v2 }",
    "{ %17 = vst [vmem:[#allocation8_spill] sm:$0xff] /*vst_source=*/%v4_v3 }",
    "{ %s8_s5 = sadd.s32 1, %s5_s2 } /* Start/End empty region 30 */",
    "{ %p3_p2 = scmp.ge.s32.totalorder %s8_s5, 4  ;;  %s9_s1 = sadd.s32 1, %s4_s1 }",
    "{ %s12_s2 = smov.u32 (!%p3_p2, %s10_s0), %s8_s5 }",
    "{ %p4_p3 = scmp.ge.s32.totalorder %s9_s1, 8 /* loop exit test */ }",
    "{ %18 = sbr.rel (!%p4_p3) target = $region7 }",
    *SLOTS,
    "{} /* exit bundle: %toy.1 = custom-call(%p, %q)\niteration_bounds: (2, 4) */",
]
UNITS = ("MATMUL", "VSTORE", "VSTORE:SPILL", "VLOAD:FILL")
V5P = parse_target("v5p-8").device
#: FLOPs of the matrix units of one core of a v5p in a cycle: four of 128 x 128.
CYCLE = 4 * 128 * 128 * 2


def text(lines=None):
    key = "= control target key start\nLB: loop body\n= control target key end\n\n"
    return key + "\n".join(f"  {at:#x} LB: > {line}" for at, line in enumerate(lines or BUNDLES)).replace(
        "0x0 ", "0 ", 1
    )


def table():
    rows = [[0, 0, 0, 0] for _ in BUNDLES]
    for at in (11, 12, 22):
        rows[at][1] = 1
    rows[20][0] = rows[21][0] = 4
    rows[22][2] = 1
    lines = ["== CAPACTIY:", ", ".join(UNITS), "   4   1   1   3", "== UTILIZATION:"]
    return "\n".join([*lines, *(" ".join(map(str, row)) for row in rows), "== something else", "9 9"])


def call(grid=(4, 4), flops=3.0 * CYCLE, share=0.5, matmul_flops=0.0):
    return Call("toy", "forward", grid, flops, matmul_flops, lambda grid: share)


def test_bundles_branches_and_grid():
    program = bundles.parse(text())
    assert (program.name, len(program.bundles), program.grid, program.megacore) == ("toy.1", len(BUNDLES), (2, 4), True)
    assert [(branch.at, branch.to) for branch in program.branches.values()] == [(6, 13), (15, 23), (27, 2)]
    with pytest.raises(ValueError, match="no bundle"):
        bundles.parse("nothing\nof the kind")


def test_what_the_grid_decides_is_counted_and_what_tables_decide_is_weighed():
    counts = walk(bundles.parse(text()), share=0.25)
    assert (counts.runs[0], counts.runs[2], counts.runs[-1]) == (1, 8, 1)
    assert counts.runs[11] == 2  # the first of each row of four
    assert counts.runs[20] == 8 * 0.25
    assert counts.by_data == {15}
    assert not counts.cut


@pytest.mark.parametrize("memory", ["vmem", "hbm"])
def test_tables_that_the_program_holds_are_followed(memory):
    """From on-chip memory as part of a program, from the device's where the call is compiled alone."""
    copied = f"  ;;  %s90_s9 = smov.u32 [#allocation3]  ;;  %91 = dma.{memory}_to_smem /*{memory}=*/%s89_s8, " + (
        "/*size_in_granules=*/16, /*smem=*/%s90_s9, /*dst_syncflagno=*/[#allocation1] }"
    )
    lines = [BUNDLES[0], BUNDLES[1].replace(" }", copied), *BUNDLES[2:]]
    counts = walk(bundles.parse(text(lines)), share=0.25, tables=[[1, 0, 0, 1, 0, 0, 0, 1]])
    assert (counts.runs[20], counts.by_data) == (3, frozenset())
    # The text says which operand it is: the second one here, whatever was copied before it.
    told = "{ %s89_s8 = inlined_call_operand.hbm [shape: s32[8], index: 1, kind: input] }"
    second = walk(
        bundles.parse(text([*lines[:2], told, *lines[2:]])), share=0.25, tables=[[0] * 8, [1, 0, 0, 1, 1, 0, 0, 1]]
    )
    assert second.runs[21] == 4
    # A second table is of no use for the first, which the data decide.
    assert walk(bundles.parse(text(lines)), share=0.25, tables=[None, [1]]).by_data == {15}


def test_cycles_regions_units_and_spills():
    made = schedule_from_texts(text(), table(), call(), V5P, "libtpu 1")
    runs = {region.name: (region.bundles, region.runs, region.depth) for region in made.regions}
    loop = 30 - 2 + 2 - 2 - 3
    assert runs == {"call": (3, 1, 0), "loop 1": (loop, 8, 1), "branch 1": (2, 2, 2), "branch 2": (3, 4, 2)}
    assert made.cycles == 3 + loop * 8 + 2 * 2 + 3 * 4
    assert made.step_cycles == (made.cycles - 3) / 4
    assert made.regions[3].units == {"MATMUL": 8, "VSTORE": 1, "VSTORE:SPILL": 1}
    assert (made.spills, made.fills, made.cores, made.grid) == (1, 0, 2, (2, 4))
    assert made.peak_share == pytest.approx(3 * 4 / made.cycles)
    assert made.notes == ("tables decide which steps compute: the problem's mask leaves 50% of them",)


def test_a_tile_takes_no_less_than_its_matmuls_at_peak():
    made = schedule_from_texts(text(), table(), call(flops=1000.0 * CYCLE), V5P, "libtpu 1")
    usual = schedule_from_texts(text(), table(), call(), V5P, "libtpu 1")
    assert made.cycles - usual.cycles == (1000 - 3) * 4
    assert any("matrix units need at peak" in note for note in made.notes)


#: A step is done in one of two ways, with a mask and without; both have the tile's products.
TWINS = [
    *BUNDLES[:23],
    "{ %p5_p5 = scmp.le.s32.totalorder %s7_s4, 1 } /* Start/End empty region 31 */",
    "{ %41 = sbr.rel (%p5_p5) target = $region30 }",
    *SLOTS,
    "{ %42 = vmatmul.bf16.gmra.mxu0 %v2_v1 }",
    "{ %43 = vmatmul.bf16.gmra.mxu0 %v3_v2 }",
    *BUNDLES[23:],
]


def with_rows(at, count, used):
    rows = table().splitlines()
    first = rows.index("== UTILIZATION:") + 1 + at
    return "\n".join([*rows[:first], *["0 0 0 0"] * (count - len(used)), *used, *rows[first:]])


def test_either_of_two_ways_to_do_a_tile_takes_what_its_matmuls_take():
    """Only the one with most products was held to it: a grouped product came out quicker than the matrix units are."""
    units_of_both = with_rows(23, 8, ["4 0 0 0", "4 0 0 0"])
    made = schedule_from_texts(text(TWINS), units_of_both, call(flops=100.0 * CYCLE, share=1.0), V5P, "libtpu 1")
    busy = [region for region in made.regions if "MATMUL" in region.units]
    assert len(busy) == 2
    assert made.cycles >= 100 * sum(region.runs for region in busy)
    assert made.peak_share == pytest.approx(100 * sum(region.runs for region in busy) / made.cycles)


def test_sums_are_cleared_once_for_each_block_of_output_where_the_data_decide():
    cleared = [*BUNDLES[:5], "{ %p1_p0 = scmp.ne.s32.totalorder %s7_s4, 0 }", *BUNDLES[6:]]
    every_step = schedule_from_texts(text(cleared), table(), call(share=1.0), V5P, "libtpu 1")
    told = dataclasses.replace(call(share=1.0), outputs=4)
    once = schedule_from_texts(text(cleared), table(), told, V5P, "libtpu 1")
    runs = [next(region.runs for region in made.regions if region.name == "branch 1") for made in (every_step, once)]
    assert runs == [8, 2]


def test_a_grid_that_is_not_halved_leaves_a_core_idle():
    made = schedule_from_texts(text(), table(), call(grid=(2, 4)), V5P, "libtpu 1")
    assert made.cores == 1
    assert made.peak_share == pytest.approx(3 * 4 / made.cycles / 2)
    assert made.notes[0].startswith("one core does all of it while the chip's other one waits")


def test_steps_that_the_data_count_come_from_the_problem():
    lines = [line.replace("%s9_s1, 8 /*", "%s99_s9, 8 /*").replace("(2, 4)", "(2, 2147483647)") for line in BUNDLES]
    asked = call(grid=(4, 0), matmul_flops=3.0 * CYCLE * 200)
    made = schedule_from_texts(text(lines), table(), asked, V5P, "libtpu 1")
    assert made.grid == (2, 0)
    assert made.regions[1].runs == pytest.approx(200 / 2)
    assert made.notes[0] == "the data decide how many steps there are: counted from the problem's FLOPs"


def test_a_long_grid_is_walked_in_part(monkeypatch):
    whole = schedule_from_texts(text(), table(), call(), V5P, "libtpu 1")
    monkeypatch.setattr("kanawa_backends_tpu.schedule.walk.MOST_ROUNDS", 4)
    part = schedule_from_texts(text(), table(), call(), V5P, "libtpu 1")
    assert part.cycles == whole.cycles
    assert part.notes[-1] == "a long grid was walked in part, and the rest taken to be alike"


#: In the tile of each step, a loop of three rounds.
WITH_LOOP = [
    *BUNDLES[:21],
    "{ %s20_s6 = smov.u32 0 }",
    "{ %s21_s6 = sphi %s20_s6, %s22_s6 } /* Start region 8 */",
    "{ %s22_s6 = sadd.s32 1, %s21_s6 }",
    "{ %p9_p4 = scmp.ge.s32.totalorder %s22_s6, 3 }",
    "{ %40 = sbr.rel (!%p9_p4) target = $region8 }",
    *SLOTS,
    *BUNDLES[21:],
]


def test_a_loop_within_the_grids_is_never_cut_and_the_grid_is_scaled_by_its_own_rounds(monkeypatch):
    """A tile's parts: cut after so many in all, they were missing from every later tile, and the scale was theirs."""
    program = bundles.parse(text(WITH_LOOP))
    loops = {branch.at: program.is_inner(branch) for branch in program.branches.values() if branch.to < branch.at}
    assert loops == {25: True, 27 + 9: False}
    whole = walk(program, share=1.0)
    assert (whole.runs[22], whole.runs[2], whole.cut) == (24, 8, False)
    monkeypatch.setattr("kanawa_backends_tpu.schedule.walk.MOST_ROUNDS", 4)
    part = walk(program, share=1.0)
    assert (part.runs[22], part.runs[2], part.cut) == (12, 4, True)
    rows = table().splitlines()
    first = rows.index("== UTILIZATION:") + 1 + 21
    wider = "\n".join([*rows[:first], *["0 0 0 0"] * 9, *rows[first:]])
    made = schedule_from_texts(text(WITH_LOOP), wider, call(share=1.0), V5P, "libtpu 1")
    assert {region.name: region.runs for region in made.regions if "loop" in region.name} == {"loop 1": 8, "loop 2": 24}


def test_units_of_another_form_are_refused():
    with pytest.raises(ValueError, match="2 units and 1 capacities"):
        units.parse("== CAPACITY:\nMATMUL, XLU\n 4\n== UTILIZATION:\n0 0\n")


def test_a_dump_without_the_kernel_says_so(tmp_path):
    with pytest.raises(KernelError, match="the compiler left no schedule of toy"):
        read_schedule(tmp_path, call(), V5P, "libtpu 1")
    (tmp_path / "12-toy.1-03-final_bundles.txt").write_text(text())
    (tmp_path / "12-toy.1-01-final_hlo-static-per-bundle-utilization.txt").write_text(table())
    assert read_schedule(tmp_path, call(), V5P, "libtpu 1") == schedule_from_texts(
        text(), table(), call(), V5P, "libtpu 1"
    )
    assert dataclasses.asdict(schedule_from_texts(text(), table(), call(), V5P, "x"))["call"] == "toy"
