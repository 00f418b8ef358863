"""How often every instruction of a module runs: loops multiply, calls pass on."""

import re
from collections.abc import Mapping

from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CONSTANT = re.compile(r"-?\d+")


def executions(module: HloModule) -> dict[str, float]:
    """Returns how often each computation that the entry reaches runs.

    Fused and called computations are included. Each branch of a conditional counts as taken: an upper bound.
    """
    counts: dict[str, float] = {name: 0.0 for name in module.computations}
    order = _callers_first(module)
    counts[module.entry] = 1.0
    for name in order:
        for instruction in module.computations[name].instructions:
            for called, times in calls(module, module.computations[name], instruction).items():
                counts[called] += counts[name] * times
    return {name: count for name, count in counts.items() if count}


def calls(module: HloModule, computation: Computation, instruction: Instruction) -> dict[str, float]:
    """Returns how often one run of an instruction runs each computation it calls."""
    times_called: dict[str, float] = {}
    times = float(trip_count(module, computation, instruction)) if instruction.opcode == "while" else 1.0
    condition = (instruction.attribute("condition") or "").lstrip("%")
    for called in instruction.called:
        if called in module.computations:
            # The condition is asked once more than the body runs.
            times_called[called] = times_called.get(called, 0.0) + times + (called == condition)
    return times_called


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> int:
    """Returns the iterations of a `while`: what the compiler knows, else the limit less the start; 1 if neither."""
    known = _KNOWN.search(loop.attributes)
    if known:
        return int(known[1])
    condition = module.computations.get((loop.attribute("condition") or "").lstrip("%"))
    if condition is None:
        return 1
    limit = _limit(module, condition)
    if limit is None:
        return 1
    index, bound = limit
    start = _start(computation, loop, index)
    # Counters of the loops that JAX writes step by one.
    return max(0, bound - start)


def _limit(module: HloModule, condition: Computation) -> tuple[int, int] | None:
    """Returns (tuple index of the counter, exclusive limit) of a condition `counter < constant`; None if it isn't."""
    compare, scope = condition.root(), condition
    arguments: Mapping[str, str] = {}
    # Some compilers fuse even a lone comparison: its operands are then the fusion's parameters.
    if compare is not None and compare.opcode == "fusion" and compare.called:
        outer = compare
        scope = module.computations[compare.called[0]]
        compare = scope.root()
        arguments = _arguments(scope, outer.operands)
    if compare is None or compare.opcode != "compare" or len(compare.operands) != 2:
        return None
    index, bound = None, None
    for operand in compare.operands:
        source = scope.by_name.get(operand)
        if source is not None and source.opcode == "parameter":
            source = condition.by_name.get(arguments.get(operand, ""))
        while source is not None and source.opcode in ("copy", "bitcast", "convert"):
            source = condition.by_name.get(source.operands[0])
        if source is None:
            continue
        if source.opcode == "constant":
            number = _CONSTANT.search(source.operand_text)
            bound = int(number[0]) if number else None
        elif source.opcode == "get-tuple-element":
            index = int(source.attribute("index") or 0)
    if bound is None:
        return None
    direction = (compare.attribute("direction") or "LT").strip()
    # `counter <= bound`, or its mirror image `bound >= counter`, runs once more than `<`.
    return index or 0, bound + (direction in ("LE", "GE"))


def _arguments(called: Computation, operands: tuple[str, ...]) -> dict[str, str]:
    """Returns {parameter's name inside: operand's name outside} of a fusion."""
    outside = {}
    for instruction in called.instructions:
        if instruction.opcode == "parameter" and instruction.operand_text.strip().isdigit():
            outside[instruction.name] = operands[int(instruction.operand_text)]
    return outside


def _start(computation: Computation, loop: Instruction, index: int) -> int:
    """Returns the counter's value before the loop; 0 if the text doesn't say."""
    value = computation.by_name.get(loop.operands[0]) if loop.operands else None
    if value is not None and value.opcode == "tuple" and index < len(value.operands):
        value = computation.by_name.get(value.operands[index])
    # The counter's start may have been copied to another memory on its way into the loop.
    while value is not None and value.opcode in ("copy", "bitcast", "copy-done", "copy-start") and value.operands:
        value = computation.by_name.get(value.operands[0])
    if value is None or value.opcode != "constant":
        return 0
    number = _CONSTANT.search(value.operand_text)
    return int(number[0]) if number else 0


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
