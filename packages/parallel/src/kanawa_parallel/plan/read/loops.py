"""How often every instruction of a module runs: loops multiply, calls pass on.

Bounds and counters of loops are integers that the program computes for itself, read as far as the text says them. A
counter seen from inside its loop is taken at its mean, so that a loop as long as another's counter runs as often as it
does on average.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping

from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
#: What a comparison says of its second operand.
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
_CONSTANT = re.compile(r"-?\d+")
#: What hands a number on as it is, maybe through another memory.
_SAME = frozenset(
    ("copy", "bitcast", "convert", "reshape", "broadcast", "copy-start", "copy-done", "optimization-barrier")
)
_ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": lambda a, b: math.trunc(a / b) if b else 0.0,
    "remainder": lambda a, b: math.fmod(a, b) if b else 0.0,
    "minimum": min,
    "maximum": max,
    "negate": operator.neg,
    "clamp": lambda low, value, high: min(max(low, value), high),
}


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


@dataclasses.dataclass(frozen=True)
class Scope:
    """A computation as one caller runs it: what its parameters are, and in a loop which elements are held fixed."""

    module: HloModule
    computation: Computation
    caller: "Scope | None" = None
    by: Instruction | None = None
    fixed: Mapping[int, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, module: HloModule, computation: Computation) -> "Scope":
        """Returns a computation's scope under its only caller; of several callers none is known to be meant."""
        callers = module.callers.get(computation.name, [])
        if len(callers) != 1:
            return cls(module, computation)
        name, instruction = callers[0]
        return cls(module, computation, cls.of(module, module.computations[name]), instruction)

    def inside(self, name: str, by: Instruction, fixed: Mapping[int, float] | None = None) -> "Scope":
        """Returns the scope of a computation that an instruction of this one calls."""
        return Scope(self.module, self.module.computations[name], self, by, fixed or {})

    def source(self, name: str) -> "tuple[Scope, Instruction] | None":
        """Returns where a value comes from, through copies and through parameters of calls."""
        made = self.computation.by_name.get(name)
        while made is not None and made.opcode in _SAME and made.operands:
            made = self.computation.by_name.get(made.operands[0])
        if made is None:
            return None
        if made.opcode == "parameter" and self.by is not None and self.caller is not None and self.by.opcode != "while":
            # Branches of a conditional take one operand each, after the one that chooses.
            first = 1 + self.by.called.index(self.computation.name) if self.by.opcode == "conditional" else 0
            position = int(_number(made)) + first
            return self.caller.source(self.by.operands[position]) if position < len(self.by.operands) else None
        return self, made

    def value(self, name: str) -> float | None:
        """Returns a number; None if the text doesn't say."""
        source = self.source(name)
        if source is None:
            return None
        scope, made = source
        if made.opcode == "constant":
            return _number(made) if _CONSTANT.search(made.operand_text) else None
        if made.opcode == "get-tuple-element":
            return scope.element(made.operands[0], int(made.attribute("index") or 0))
        if made.opcode == "fusion" and made.called and made.called[0] in self.module.computations:
            inside = scope.inside(made.called[0], made)
            root = inside.computation.root()
            return None if root is None else inside.value(root.name)
        if made.opcode in _ARITHMETIC:
            operands = [scope.value(operand) for operand in made.operands]
            known = [operand for operand in operands if operand is not None]
            return float(_ARITHMETIC[made.opcode](*known)) if len(known) == len(operands) else None
        return None

    def element(self, name: str, index: int) -> float | None:
        """Returns an element of a tuple; of what a loop carries the same for all its iterations, or the mean."""
        source = self.source(name)
        if source is None:
            return None
        scope, made = source
        if made.opcode == "tuple":
            return scope.value(made.operands[index]) if index < len(made.operands) else None
        if made.opcode == "while":
            body = scope.inside((made.attribute("body") or "").lstrip("%"), made)
            return scope.element(made.operands[0], index) if body.invariant(index) else None
        if made.opcode != "parameter" or scope.by is None or scope.caller is None:
            return None
        if index in scope.fixed:
            return scope.fixed[index]
        start = scope.caller.element(scope.by.operands[0], index)
        body = scope.caller.inside((scope.by.attribute("body") or "").lstrip("%"), scope.by)
        if start is None or body.invariant(index):
            return start
        step = body.step(index)
        return None if step is None else start + step * (iterations(scope.caller, scope.by) - 1) / 2

    def invariant(self, index: int) -> bool:
        """Returns whether a loop's body hands an element on as it got it."""
        root = self.computation.root()
        if root is None or root.opcode != "tuple" or index >= len(root.operands):
            return False
        source = self.source(root.operands[index])
        return source is not None and self.carried(source[1]) == index

    def step(self, index: int) -> float | None:
        """Returns what an iteration adds to an element; None if that isn't always the same."""
        root, loop = self.computation.root(), self.by
        if root is None or root.opcode != "tuple" or index >= len(root.operands) or self.caller is None or loop is None:
            return None
        # Whatever adds it, a fusion included: asked for two values, it must add the same to both.
        name = self.computation.name
        added = [self.caller.inside(name, loop, {index: at}).value(root.operands[index]) for at in (0.0, 1.0)]
        first, second = added
        return first if first is not None and second is not None and second - 1.0 == first else None

    def carried(self, made: Instruction) -> int | None:
        """Returns which element of what a loop carries an instruction takes."""
        if made.opcode != "get-tuple-element":
            return None
        parameter = self.computation.by_name.get(made.operands[0])
        if parameter is None or parameter.opcode != "parameter":
            return None
        return int(made.attribute("index") or 0)


def iterations(scope: Scope, loop: Instruction) -> float:
    """Returns the iterations of a loop of a scope."""
    known = _KNOWN.search(loop.attributes)
    if known:
        return float(known[1])
    name = (loop.attribute("condition") or "").lstrip("%")
    if name not in scope.module.computations or not loop.operands:
        return 1.0
    condition = scope.inside(name, loop)
    root = condition.computation.root()
    limits = [] if root is None else _limits(condition, root.name)
    counts = [count for limit in limits if (count := _count(scope, loop, limit)) is not None]
    # Conditions that all have to hold end the loop with the first that doesn't.
    return min(counts, default=1.0)


def _limits(scope: Scope, name: str) -> list[tuple[int, str, float]]:
    """Returns (tuple index of the counter, direction, limit) of each comparison that has to hold."""
    source = scope.source(name)
    if source is None:
        return []
    scope, made = source
    # Some compilers fuse even a lone comparison.
    if made.opcode == "fusion" and made.called and made.called[0] in scope.module.computations:
        inside = scope.inside(made.called[0], made)
        root = inside.computation.root()
        return [] if root is None else _limits(inside, root.name)
    if made.opcode == "and":
        return [limit for operand in made.operands for limit in _limits(scope, operand)]
    if made.opcode != "compare" or len(made.operands) != 2:
        return []
    direction = (made.attribute("direction") or "LT").strip()
    limits = []
    for side, other, holds in ((0, 1, direction), (1, 0, _MIRRORED.get(direction, direction))):
        counter = scope.source(made.operands[side])
        index = None if counter is None else counter[0].carried(counter[1])
        if index is None or counter is None or _body(counter[0]).invariant(index):
            continue
        bound = scope.value(made.operands[other])
        if bound is not None:
            limits.append((index, holds, bound))
    return limits


def _body(condition: Scope) -> Scope:
    """Returns the scope of the body of the loop that a condition belongs to."""
    loop, caller = condition.by, condition.caller
    name = "" if loop is None else (loop.attribute("body") or "").lstrip("%")
    if loop is None or caller is None or name not in condition.module.computations:
        return condition
    return caller.inside(name, loop)


def _count(scope: Scope, loop: Instruction, limit: tuple[int, str, float]) -> float | None:
    index, direction, bound = limit
    start = scope.element(loop.operands[0], index) or 0.0
    body = (loop.attribute("body") or "").lstrip("%")
    step = scope.inside(body, loop).step(index) if body in scope.module.computations else None
    # Counters of the loops that JAX writes step by one.
    step = step or 1.0
    distance = (bound - start) / step
    falls = direction in ("GT", "GE")
    if direction not in ("LT", "LE", "GT", "GE", "NE") or (direction != "NE" and falls != (step < 0)):
        return None
    # `counter <= bound` runs once more than `<`. A mean may be a fraction, a single loop's count is not.
    whole = distance if distance != int(distance) and bound != int(bound) else math.ceil(distance)
    return max(0.0, float(math.floor(distance) + 1 if direction in ("LE", "GE") else whole))


def _number(made: Instruction) -> float:
    match = _CONSTANT.search(made.operand_text)
    return float(match[0]) if match else 0.0
