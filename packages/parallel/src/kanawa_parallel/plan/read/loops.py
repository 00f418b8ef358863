"""How often every instruction of a module runs: loops multiply, calls pass on."""

from collections.abc import Callable

from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction
from kanawa_parallel.plan.read.scalars import Scope, iterations


def executions(module: HloModule, taken: Callable[[Instruction], str | None] | None = None) -> dict[str, float]:
    """Returns how often each computation that the entry reaches runs.

    Fused and called computations are included. Of a conditional's branches the one that `taken` names counts; without
    it each counts as taken: an upper bound.
    """
    counts: dict[str, float] = {name: 0.0 for name in module.computations}
    order = _callers_first(module)
    counts[module.entry] = 1.0
    for name in order:
        for instruction in module.computations[name].instructions:
            chosen = taken(instruction) if taken is not None and instruction.opcode == "conditional" else None
            for called, times in calls(module, module.computations[name], instruction).items():
                if chosen is None or called == chosen:
                    counts[called] += counts[name] * times
    return {name: count for name, count in counts.items() if count}


def calls(module: HloModule, computation: Computation, instruction: Instruction) -> dict[str, float]:
    """Returns how often one run of an instruction runs each computation it calls."""
    times_called: dict[str, float] = {}
    times = trip_count(module, computation, instruction) if instruction.opcode == "while" else 1.0
    condition = (instruction.attribute("condition") or "").lstrip("%")
    for called in instruction.called:
        if called in module.computations:
            # The condition is asked once more than the body runs.
            times_called[called] = times_called.get(called, 0.0) + times + (called == condition)
    # Equal branches are one computation, of which a conditional runs one.
    return dict.fromkeys(times_called, 1.0) if instruction.opcode == "conditional" else times_called


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> float:
    """Returns the iterations of a `while`: what the compiler knows, else what its counter needs to its limit.

    A limit that an outer loop changes is taken at its mean; where the text says none, the loop counts once.
    """
    return iterations(Scope.of(module, computation), loop)


def _callers_first(module: HloModule) -> list[str]:
    """Returns the computations reached from the entry, each after all that call it."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for instruction in module.computations[name].instructions:
            for called in instruction.called:
                if called in module.computations:
                    visit(called)
        order.append(name)

    visit(module.entry)
    # Post-order reversed: a computation's count is complete before it is passed on to what it calls.
    return order[::-1]
