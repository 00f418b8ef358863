"""The values that a compiled program holds at its fullest moment, named after those of the traced program."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

from kanawa_parallel.plan.compiled.compilation import Compilation
from kanawa_parallel.plan.memory.liveness import Peak, find_peak
from kanawa_parallel.plan.quick.buffers import Buffer
from kanawa_parallel.plan.quick.estimate import estimated
from kanawa_parallel.plan.quick.values import WORKING, name_of, value_rows
from kanawa_parallel.plan.read.attribution import known_names, module_of, module_paths
from kanawa_parallel.plan.read.hlo import parse_module
from kanawa_parallel.plan.read.shapes import arrays, device_dtype
from kanawa_parallel.plan.report.report import HeldRow, Report


def with_values(report: Report, compilation: Compilation) -> Report:
    """Returns a compiled program's report with the names of what it holds at its fullest moment."""
    fullest = find_peak(compilation.assignment, compilation.live_ranges)
    if not fullest.buffers or not compilation.text:
        return report
    names = known_names(parse_module(compilation.text))
    estimate = estimated(compilation.prepared.composition, report.program)
    paths = module_paths(estimate.prepared.workload.model)
    return dataclasses.replace(report, held=tuple(compiled_values(fullest, names, estimate.memory.at_peak, paths)))


def compiled_values(
    fullest: Peak, op_names: dict[str, str], at_peak: Iterable[Buffer], paths: frozenset[str]
) -> list[HeldRow]:
    """Returns the values of a compiled program's fullest moment, largest first.

    A loop's stacked values bear the loop's name in a compiled program. They are named after those of the traced program
    that have as many bytes in the same dtype.
    """
    stacked: dict[tuple[str, int], list[Buffer]] = {}
    for each in at_peak:
        if each.stacked:
            stacked.setdefault((each.value.dtype, round(each.bytes)), []).append(each)
    total: Counter[tuple[str, str]] = Counter()
    for buffer in fullest.buffers:
        shapes = arrays(buffer.shape)
        key = (device_dtype(shapes[0].dtype), shapes[0].bytes) if len(shapes) == 1 else ("", 0)
        alike = stacked.get(key)
        if alike:
            total[name_of(alike.pop(0), paths)] += buffer.size
        else:
            owner = module_of(op_names.get(buffer.name.partition("{")[0], ""), paths)
            total[owner, WORKING] += buffer.size
    return value_rows(total)
