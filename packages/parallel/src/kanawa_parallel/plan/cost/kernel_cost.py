"""The cost of fused kernels that state none: the matmuls of their calls, by their classes, and recorded cycles.

Cycles are of the schedules that backends recorded of their compilers: those of the nearest recorded problem, scaled by
matmuls.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import jax
import kanawa as kn
from kanawa.kernels.choice import KernelChoice
from kanawa.plugins import DeviceSpec, RecordedCycles, host

from kanawa_parallel.cost_terms import filled_share

#: Cycles of each call of a kernel by the call's name, one entry for each choice by its scope.
Cycles = Mapping[str, tuple[tuple[str, float], ...]]
#: The name scope around a kernel's work: operation, platform, kernel and a digest, `attention.any.xla~e2dd7411`.
_SCOPE = re.compile(r"\b([a-z_]+)\.[a-z_]+\.\w+~[0-9a-f]+")


def operation_of(name_stack: str) -> str:
    """Returns the operation whose kernel a name stack passes through, such as "attention"; "" for any other."""
    match = _SCOPE.search(name_stack)
    return match[1] if match else ""


def is_primitive(name: str) -> bool:
    """Returns whether JAX has a primitive of this name, such as "gather": no kernel's call, whatever scope it is in."""
    return hasattr(jax.lax, f"{name.replace('-', '_')}_p")


@dataclass(frozen=True)
class KernelCost:
    """One choice of the manifest: the scope of its calls, FLOPs of one of its matmuls, and matmuls by a call's name.

    `cycles` are those of calls by the names that they were scheduled under; empty if they weren't.
    """

    scope: str
    matmul_flops: float
    calls: tuple[tuple[str, float], ...]
    cycles: tuple[tuple[str, float], ...] = ()
    #: How many times its matmuls it computes, which `cycles` contain already.
    computed: float = 1.0

    def cycles_of(self, label: str) -> float | None:
        """Returns the cycles of a call of that name, or of one that does the same part of the work; None if unknown."""
        same = [cycles for name, cycles in self.cycles if name.lower() in label.lower()]
        if same:
            # A kernel that calls one function for several parts: gmm forward and for the rows' gradient.
            return sum(same) / len(same)
        part = self._part(label)
        alike = [cycles for name, cycles in self.cycles if part is not None and self._part(name) == part]
        return sum(alike) / len(alike) if alike else None

    def _part(self, label: str) -> int | None:
        """Returns which of the kernel's calls a name is of: the first whose pattern it matches."""
        places = (at for at, (pattern, _) in enumerate(self.calls) if re.search(pattern, label, re.IGNORECASE))
        return next(places, None)

    def flops(self, label: str) -> float:
        """Returns the FLOPs of a call of that name; 0 where the kernel has none such."""
        for pattern, matmuls in self.calls:
            if re.search(pattern, label, re.IGNORECASE):
                return matmuls * self.matmul_flops
        return 0.0


@dataclass(frozen=True)
class KernelCosts:
    """The costs of a program's kernels, in the order in which it calls them."""

    costs: tuple[KernelCost, ...] = ()

    @classmethod
    def of_choices(cls, choices: Iterable[KernelChoice], cycles: Cycles | None = None) -> "KernelCosts":
        """Returns the costs of those chosen kernels that are catalogued, and name their calls or were scheduled."""
        keys, costs = _keys(), []
        for choice in choices:
            key = keys.get(choice.kernel)
            kernel = None if key is None else kn.component("kernels", key)
            calls = () if kernel is None else kernel.compiled_calls
            known = (cycles or {}).get(choice.scope, ())
            if (calls and choice.matmul_flops) or known:
                problem = choice.local_problem
                computed = 1.0 if kernel is None or problem is None else kernel().computed(problem, None)
                costs.append(KernelCost(choice.scope, choice.matmul_flops, calls, known, computed))
        return cls(tuple(costs))

    def flops(self, path: str, label: str, anywhere: bool = False) -> float:
        """Returns the FLOPs of the call with this label; 0 if no kernel knows it.

        `path` is the call's name stack: its scope names the kernel. Where the compiler dropped the scope, `anywhere`
        takes the first kernel whose calls have such a label.
        """
        label, costs = self._labelled(path, label, anywhere)
        return filled_share(path) * next((flops for cost in costs if (flops := cost.flops(label))), 0.0)

    def cycles(self, path: str, label: str, anywhere: bool = False) -> float | None:
        """Returns the cycles of a call by its kernel's schedule, found as in `flops`; None if unknown."""
        label, costs = self._labelled(path, label, anywhere)
        found = next((cycles for cost in costs if (cycles := cost.cycles_of(label)) is not None), None)
        return None if found is None else found * filled_share(path)

    def computed(self, path: str, label: str) -> float:
        """Returns how many times its matmuls the kernel of a call computes; 1 if no kernel knows it."""
        label, costs = self._labelled(path, label, anywhere=False)
        return next((cost.computed for cost in costs if cost.flops(label)), 1.0)

    def _labelled(self, path: str, label: str, anywhere: bool) -> tuple[str, tuple[KernelCost, ...]]:
        """Returns the whole label of a call, and the kernels that it may belong to."""
        within = tuple(cost for cost in self.costs if cost.scope in path)
        # A distributed kernel, such as a ring, runs another on its parts, under its own name and the other's digest.
        within = within or tuple(cost for cost in self.costs if f"~{cost.scope.rpartition('~')[2]}" in path)
        if within:
            # What follows the scope is the kernel's own: its layers may be called anything.
            label = f"{label} {path.rpartition(within[0].scope.rpartition('~')[2])[2]}"
        return label, within or (self.costs if anywhere else ())


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
    kernel = kn.component("kernels", _keys()[choice.kernel])()
    times = flops / nearest.matmul_flops * kernel.computed(choice.local_problem, device)
    return tuple((name, cycles * times) for name, cycles in nearest.cycles.items())


def _keys() -> dict[str, str]:
    """Returns the qualified names of usable kernels by their own."""
    return {state.name: state.key for state in host().components("kernels") if state.state.usable}


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
