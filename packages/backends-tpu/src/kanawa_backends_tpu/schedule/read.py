"""From a call's dumped texts to its record: regions with their runs and units, cycles, share of the matrix units."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kanawa.errors import KernelError
from kanawa.plugins import DeviceSpec, KernelSchedule, Region

from kanawa_backends_tpu.schedule import bundles, units
from kanawa_backends_tpu.schedule.bundles import Program
from kanawa_backends_tpu.schedule.walk import Walk, walk

_BUNDLES, _UNITS = "-final_bundles.txt", "-final_hlo-static-per-bundle-utilization.txt"
_LARGEST_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Call:
    """What is known of a call beside its schedule.

    Attributes:
        step_flops: FLOPs of the matmuls of one step of its grid.
        matmul_flops: FLOPs that the problem asks of it; 0 where that isn't known.
        share: of a grid's steps whose tile holds anything, for the grid of all cores.
        tables: its scalar operands in order, flat, None where the data decide them.
        outputs: blocks that all cores write; None where that isn't known.
    """

    name: str
    direction: str
    grid: tuple[int, ...]
    step_flops: float
    matmul_flops: float
    share: Callable[[tuple[int, ...]], float]
    tables: tuple[list[int] | None, ...] = ()
    outputs: int | None = None

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], matmul_flops: float, share: Callable[[tuple[int, ...]], float]
    ) -> "Call":
        """Returns the call as the kernel tools' `compile-apart` describes it."""
        tables = tuple(record.get("tables", ()))
        grid = tuple(record["grid"])
        return cls(
            record["name"],
            record["direction"],
            grid,
            record["flops"],
            matmul_flops,
            share,
            tables,
            record.get("outputs"),
        )


def read_schedule(folder: Path, call: Call, device: DeviceSpec, compiler: str) -> KernelSchedule:
    """Returns the record of the one kernel whose dump lies in `folder`; raises KernelError where there is none."""
    text, table = _texts(folder, call)
    return schedule_from_texts(text, table, call, device, compiler)


def schedule_from_texts(text: str, table: str, call: Call, device: DeviceSpec, compiler: str) -> KernelSchedule:
    """Returns the record from the texts of a schedule and of its use of units."""
    program, used = bundles.parse(text), units.parse(table)
    share = call.share(call.grid)
    cores = _cores(program, call)
    steps, guessed = _steps(call, cores)
    outputs = None if call.outputs is None else call.outputs / cores
    counts = walk(program, share, steps, call.tables, outputs, used.holding(units.MATRIX))
    scale = steps / max(1.0, _rounds(program, counts)) if counts.cut or guessed else 1.0
    spans = _spans(program)
    regions, cycles, stalled = [], 0.0, False
    computed = 0.0
    most = max(_products(spans, used, span) for span in spans)
    for span in spans:
        own = [at for at in range(span.begin, span.end) if not any(inner.holds(at) for inner in spans if inner in span)]
        inside_loop = span.depth > 0
        runs = (counts.runs[own[0]] if own else 0.0) * (scale if inside_loop else 1.0)
        of_units = used.used(own)
        time = float(len(own))
        # Of a step's matmuls as much as it has of those of the part with most: a step may be done in one of two ways,
        # or cut where a mask goes through its tile.
        part = of_units.get(units.MATRIX, 0) / most if most else 0.0
        computed += part * runs
        least = part * call.step_flops / _flops_per_cycle(device)
        stalled |= least > time
        time = max(time, least)
        cycles += time * runs
        regions.append(Region(name=span.name, depth=span.depth, bundles=len(own), runs=runs, units=of_units))
    whole = used.used(range(len(program.bundles)))
    # An idle core's matrix units count: the share is of the device's.
    at_peak = call.step_flops * computed * cores / _flops_per_cycle(device) / (2 if program.megacore else 1)
    # What stands outside all loops runs once; the rest is the steps'.
    once = sum(region.bundles for region in regions if region.depth == 0)
    loop = next((region.runs for region in regions if region.depth == 1 and region.runs), None)
    return KernelSchedule(
        call=call.name,
        direction="backward" if call.direction == "backward" else "forward",
        compiler=compiler,
        cores=cores,
        grid=tuple(0 if size == _LARGEST_INDEX else size for size in program.grid),
        regions=tuple(regions),
        capacity=used.capacity,
        spills=whole.get(units.SPILLS, 0),
        fills=whole.get(units.FILLS, 0),
        step_cycles=(cycles - once) / steps_run if (steps_run := computed or loop) else None,
        cycles=cycles,
        peak_share=at_peak / cycles if cycles else None,
        notes=tuple(_notes(counts, share, guessed, stalled, idle=program.megacore and cores == 1)),
    )


def _texts(folder: Path, call: Call) -> tuple[str, str]:
    """Returns the schedule of the one custom call in a dump, and its table of units."""
    for path in sorted(folder.glob(f"*{_BUNDLES}")):
        if "schedule-analysis" in path.name:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if bundles.parse(text).name:
            # "123-gmm.1-03-final_bundles.txt": files of one kernel begin alike, up to the number of the pass.
            stem = path.name.removesuffix(_BUNDLES).rpartition("-")[0]
            tables = sorted(other for other in folder.glob(f"*{_UNITS}") if other.name.startswith(f"{stem}-"))
            if tables:
                return text, tables[0].read_text(encoding="utf-8", errors="replace")
    message = f"the compiler left no schedule of {call.name}: this version of libtpu writes none, or under another name"
    raise KernelError(message)


def _cores(program: Program, call: Call) -> int:
    """Returns how many cores share the grid: the compiler splits it in two where a dimension is parallel."""
    if not program.megacore:
        return 1
    whole = math.prod(size for size in call.grid if size)
    own = math.prod(size for size in program.grid if size != _LARGEST_INDEX)
    return 2 if own < whole else 1


def _steps(call: Call, cores: int) -> tuple[float, bool]:
    """Returns the steps that one core takes, and whether they are guessed from the problem's FLOPs."""
    if 0 not in call.grid:
        return math.prod(call.grid) / cores, False
    static = math.prod(size for size in call.grid if size)
    whole = math.ceil(call.matmul_flops / call.step_flops) if call.matmul_flops and call.step_flops else static
    return max(float(whole), float(static)) / cores, True


def _rounds(program: Program, counts: Walk) -> float:
    """Returns how often the walk went through the loop over the grid: the outer one that runs most."""
    outer = (branch for branch in program.branches.values() if branch.to < branch.at and not program.is_inner(branch))
    return max((counts.runs[branch.at] for branch in outer), default=1.0)


def _flops_per_cycle(device: DeviceSpec) -> float:
    """Returns FLOPs that the matrix units of one core do a cycle at bfloat16."""
    return device.peak_flops["bfloat16"] / (device.clock_hz or 1.0) / device.cores_per_chip


@dataclass(frozen=True)
class _Span:
    """Bundles that run together: the whole, a loop, or what a branch guards."""

    name: str
    begin: int
    end: int
    depth: int

    def holds(self, at: int) -> bool:
        return self.begin <= at < self.end

    def __contains__(self, other: "_Span") -> bool:
        return self is not other and self.begin <= other.begin and other.end <= self.end


def _spans(program: Program) -> list[_Span]:
    """Returns the whole program, its loops and guarded parts, outermost first, in program order."""
    ranges = [(0, len(program.bundles), "call")]
    for branch in program.branches.values():
        if branch.to < branch.at:
            ranges.append((branch.to, min(branch.after, len(program.bundles)), "loop"))
        elif branch.to > branch.after:
            ranges.append((branch.after, branch.to, "branch"))
    ranges.sort(key=lambda each: (each[0], -each[1]))
    spans: list[_Span] = []
    numbers = {"call": 0, "loop": 0, "branch": 0}
    for begin, end, kind in ranges:
        depth = sum(other.begin <= begin and end <= other.end for other in spans)
        numbers[kind] += 1
        spans.append(_Span(kind if kind == "call" else f"{kind} {numbers[kind]}", begin, end, depth))
    return spans


def _products(spans: list[_Span], used: units.Units, span: _Span) -> int:
    """Returns the matrix products of a part's own bundles."""
    inner = [other for other in spans if other in span]
    own = (at for at in range(span.begin, span.end) if not any(each.holds(at) for each in inner))
    return used.used(own).get(units.MATRIX, 0)


def _notes(counts: Walk, share: float, guessed: bool, stalled: bool, idle: bool) -> list[str]:
    notes = []
    if idle:
        notes.append("one core does all of it while the chip's other one waits: no dimension of the grid is parallel")
    if counts.by_data and not guessed:
        notes.append(f"tables decide which steps compute: the problem's mask leaves {share:.0%} of them")
    if guessed:
        notes.append("the data decide how many steps there are: counted from the problem's FLOPs")
    if stalled:
        notes.append("bundles are fewer than the matrix units need at peak: a tile was counted by the latter")
    if counts.cut:
        notes.append("a long grid was walked in part, and the rest taken to be alike")
    return notes
