"""The cycles of a program's kernels, from the schedules that their backends recorded of their compilers.

A call takes those of the nearest recorded problem, scaled by its matmuls.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from kanawa.kernels.choice import KernelChoice
from kanawa.plugins import DeviceSpec, RecordedCycles, host

#: Cycles of each call of a kernel by the call's name, one entry for each choice by its scope.
Cycles = Mapping[str, tuple[tuple[str, float], ...]]


def recorded_cycles(choices: Iterable[KernelChoice], device: DeviceSpec) -> Cycles:
    """Returns the recorded cycles of kernels that make calls of their own; empty for a device without a clock."""
    if device.clock_hz is None:
        return {}
    own = (choice for choice in choices if choice.kernel.split(".")[1:2] == [device.platform])
    known = ((choice.scope, _recorded(choice, device)) for choice in own if choice.local_problem is not None)
    return {scope: calls for scope, calls in known if calls}


def _recorded(choice: KernelChoice, device: DeviceSpec) -> tuple[tuple[str, float], ...]:
    rows = [row for _, table in host().collect("kanawa_recorded_cycles") for row in table]
    rows = [row for row in rows if (row.kernel, row.device) == (choice.kernel, device.name) and row.matmul_flops]
    flops = choice.matmul_flops
    if not rows or not flops:
        return ()
    nearest = min(rows, key=lambda row: _distance(row, choice.local_problem))
    return tuple((name, cycles * flops / nearest.matmul_flops) for name, cycles in nearest.cycles.items())


def _distance(row: RecordedCycles, problem: Any) -> float:
    """Returns how unlike a problem's fields are: by a factor for numbers, and as much as e for each other one."""
    total = 0.0
    for name, value in vars(problem).items():
        other = row.problem.get(name)
        if _is_count(value) and _is_count(other):
            total += abs(math.log(value / other))
        elif str(value) != str(other):
            total += 1.0
    return total


def _is_count(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and value > 0
