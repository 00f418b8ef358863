"""Where the time of recorded steps went: by module, kind of work and phase, and where devices waited for the host."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kanawa_parallel.plan.read.attribution import known_names, module_of
from kanawa_parallel.plan.read.hlo import HloModule, Instruction
from kanawa_parallel.profile.trace import Event, HostCall, Trace

#: What only runs other instructions: its own time is the time of those on other threads.
_CONTROL = ("while", "conditional", "call")
_MATMULS = ("dot", "convolution")
_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-", "ragged-all", "send", "recv")
_MOVES = ("copy", "transpose", "gather", "scatter", "dynamic-slice", "dynamic-update-slice", "concatenate", "slice",
          "pad", "reshape", "bitcast", "broadcast", "iota")  # fmt: skip
#: Waits shorter than this are how programs are started, not gaps.
SHORTEST_GAP = 1e-4


@dataclasses.dataclass(frozen=True)
class Gap:
    """A time in which no device computed, in seconds, and the innermost Python call that was running."""

    seconds: float
    host: str


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The seconds of one step, the mean over those recorded; `by_*` are of devices' busy time."""

    program: str
    steps: int
    devices: int
    #: From the start of one step to the start of the next.
    step_seconds: float
    #: Of these, with at least one instruction running.
    busy_seconds: float
    by_module: dict[str, float]
    by_kind: dict[str, float]
    by_phase: dict[str, float]
    #: (instruction, module, seconds), the longest first.
    longest: list[tuple[str, str, float]]
    gaps: list[Gap]

    @property
    def idle_share(self) -> float:
        """The share of a step in which no device computes."""
        return 1 - self.busy_seconds / self.step_seconds if self.step_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns the object of `profile --json`."""
        return {**dataclasses.asdict(self), "idle_share": self.idle_share}


def account(trace: Trace, paths: frozenset[str]) -> StepTimes:
    """Returns the times of the program that took longest, which is the step; `paths` are the model's modules."""
    total: dict[str, float] = {}
    for event in trace.events:
        _add(total, event.program, event.own)
    program = max(total, key=lambda name: total[name])
    events = [event for event in trace.events if event.program == program]
    steps, devices = _steps(events), len({event.device for event in events})
    module, instructions = _module(trace, program, {event.instruction for event in events})
    names = known_names(module)
    by: dict[str, dict[str, float]] = {"module": {}, "kind": {}, "phase": {}}
    longest: dict[str, float] = {}
    for event in events:
        instruction = instructions.get(event.instruction)
        if instruction is not None and instruction.opcode in _CONTROL:
            continue
        seconds, name = event.own * 1e-9 / steps / devices, names.get(event.instruction, "")
        _add(by["module"], module_of(name, paths), seconds)
        _add(by["kind"], _kind(event.instruction, instruction, module), seconds)
        _add(by["phase"], _phase(name), seconds)
        _add(longest, event.instruction, seconds)
    busy = _merged(events)
    window = busy[-1][1] - busy[0][0]
    return StepTimes(
        program=program.removeprefix("jit_"),
        steps=steps,
        devices=devices,
        step_seconds=window * 1e-9 / steps,
        busy_seconds=sum(end - start for start, end in busy) * 1e-9 / steps,
        by_module=_ordered(by["module"]),
        by_kind=_ordered(by["kind"]),
        by_phase=_ordered(by["phase"]),
        longest=[
            (each, module_of(names.get(each, ""), paths), seconds)
            for each, seconds in list(_ordered(longest).items())[:12]
        ],
        gaps=_gaps(busy, trace.calls),
    )


def _module(trace: Trace, program: str, ran: set[str]) -> tuple[HloModule, dict[str, Instruction]]:
    """Returns the program that ran and its instructions; of several with its name the one that has most of `ran`."""
    best: tuple[HloModule, dict[str, Instruction]] = HloModule({}, ""), {}
    for name, module in trace.programs:
        held = {i.name: i for computation in module.computations.values() for i in computation.instructions}
        if name == program and len(ran & held.keys()) > len(ran & best[1].keys()):
            best = module, held
    return best


def _steps(events: Sequence[Event]) -> int:
    """Returns how often the program ran: by its runs' numbers, else by the count of most of its instructions."""
    runs = {event.run for event in events if event.run}
    if runs:
        return len(runs)
    device = events[0].device
    counts = Counter(event.instruction for event in events if event.device == device)
    return Counter(counts.values()).most_common(1)[0][0]


def _kind(name: str, instruction: Instruction | None, module: HloModule) -> str:
    """Returns what kind of work an instruction is; of a fusion, that of the heaviest that it holds."""
    if instruction is None:
        return "other"
    held = {instruction.opcode}
    if instruction.opcode == "fusion":
        held = {i.opcode for called in instruction.called for i in module.computations[called].instructions}
    if any(opcode.startswith(_COLLECTIVES) for opcode in held):
        return "collectives"
    if instruction.opcode == "custom-call" or name.startswith("custom-call"):
        return "kernels"
    if any(opcode in _MATMULS for opcode in held):
        return "matmuls"
    if held & {"reduce", "reduce-window", "sort"}:
        return "reductions"
    if held <= {*_MOVES, "parameter", "constant", "tuple", "get-tuple-element", "copy-start", "copy-done"}:
        return "data movement"
    return "elementwise"


def _phase(op_name: str) -> str:
    """Returns "recompute", "backward" or "forward" (which includes the update)."""
    # First, because what is computed again stands inside a `transpose(` too.
    if "rematted_computation" in op_name:
        return "recompute"
    return "backward" if "transpose(" in op_name else "forward"


def _merged(events: Iterable[Event]) -> list[tuple[float, float]]:
    """Returns the times in which at least one instruction runs."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _gaps(busy: Sequence[tuple[float, float]], calls: Sequence[HostCall]) -> list[Gap]:
    """Returns the longest times between instructions, the longest first, with what the host was doing."""
    between = [(after[0] - before[1], before[1], after[0]) for before, after in zip(busy, busy[1:], strict=False)]
    longest = sorted((gap for gap in between if gap[0] * 1e-9 >= SHORTEST_GAP), reverse=True)[:5]
    return [Gap(length * 1e-9, _host_at((start + end) / 2, calls)) for length, start, end in longest]


def _host_at(moment: float, calls: Sequence[HostCall]) -> str:
    """Returns the innermost call with a source line, and the one inside of it that has none."""
    running = sorted((call for call in calls if call.start <= moment < call.end), key=lambda call: call.start)
    sourced = [index for index, call in enumerate(running) if ".py:" in call.name]
    return " > ".join(call.name for call in running[sourced[-1] if sourced else -1 :][:2])


def _add(counted: dict[str, float], name: str, seconds: float) -> None:
    counted[name] = counted.get(name, 0.0) + seconds


def _ordered(counted: dict[str, float]) -> dict[str, float]:
    return dict(sorted(counted.items(), key=lambda item: -item[1]))
