"""A recorded trace: which instruction of which program ran when on each device, and what the host did meanwhile."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_parallel.plan.read.hlo import HloModule
from kanawa_parallel.profile.programs import programs_of

#: The line of a device's plane that has its instructions where events name them by their text alone.
_OPERATIONS = "XLA Ops"
#: How JAX names the call of a compiled function.
_STARTS = "PjitFunction("
#: No message of this kind may be longer.
_MOST_BYTES = 2**31


@dataclasses.dataclass(frozen=True)
class Event:
    """One run of an instruction of a program, in nanoseconds on the trace's clock; `run` numbers the program's runs."""

    instruction: str
    program: str
    run: str
    device: str
    start: float
    #: Without what ran inside of it on the same line, as a loop's body does.
    own: float
    end: float


@dataclasses.dataclass(frozen=True)
class HostCall:
    """One Python call of the thread that trains, in nanoseconds."""

    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Trace:
    """What was recorded."""

    file: Path
    events: list[Event]
    #: By name; several may have one name.
    programs: list[tuple[str, HloModule]]
    calls: list[HostCall]


def find_trace(run: Path) -> Path:
    """Returns the newest trace of a run's folder; raises UsageError where it has none."""
    files = sorted(run.glob("*/plugins/profile/*/*.xplane.pb"), key=lambda file: (file.parent.name, file.name))
    if not files:
        message = (
            f"{run} has no recorded steps: train with --profile steps=10:20, which writes RUN/profile "
            "(the first process of a run records itself)"
        )
        raise UsageError(message)
    return files[-1]


def read_trace(file: Path) -> Trace:
    """Reads a trace; raises UsageError for a file that is none, and for one in which no program ran."""
    from jax.profiler import ProfileData

    held = guarded_bytes(file, most=_MOST_BYTES)
    try:
        programs = programs_of(held)
        data = ProfileData.from_serialized_xspace(held)
        events = [event for plane in data.planes for event in _events(plane)]
        calls = [call for plane in data.planes for line in plane.lines for call in _calls(line)]
    except (ValueError, RuntimeError, IndexError) as error:
        message = f"{file} can't be read as a trace: {error}"
        raise UsageError(message) from None
    if not events:
        message = f"in {file} no program ran: record steps that the run reached"
        raise UsageError(message)
    return Trace(file, events, programs, calls)


def _events(plane: Any) -> Iterator[Event]:
    for line in plane.lines:
        found = sorted(_instructions(plane, line), key=lambda event: (event.start, -event.end))
        yield from _without_nested(found)


def _instructions(plane: Any, line: Any) -> Iterator[Event]:
    """Yields the runs on a line; a thread of the host, a stream or a unit of an accelerator."""
    for event in line.events:
        stats = dict(event.stats)
        name = stats.get("hlo_op")
        if name is None and line.name == _OPERATIONS:
            name = event.name.partition(" = ")[0].lstrip("%")
        if name is None or event.name.startswith("end: "):
            continue
        device = f"{plane.name} {stats.get('device_ordinal', '')}".strip()
        program = str(stats.get("hlo_module", ""))
        start, end = event.start_ns, event.start_ns + event.duration_ns
        run = str(stats.get("run_id", ""))
        yield Event(str(name), program, run, device, start, end - start, end)


def _without_nested(events: list[Event]) -> Iterator[Event]:
    """Yields a line's events, each with the time that is its own."""
    own = [event.end - event.start for event in events]
    open_: list[int] = []
    for index, event in enumerate(events):
        while open_ and events[open_[-1]].end <= event.start:
            open_.pop()
        if open_ and event.end <= events[open_[-1]].end:
            own[open_[-1]] -= event.end - event.start
        open_.append(index)
    for event, left in zip(events, own, strict=True):
        yield dataclasses.replace(event, own=max(left, 0.0))


def _calls(line: Any) -> Iterator[HostCall]:
    """Yields the Python calls of a thread that starts programs, which is the one that trains."""
    found = list(line.events)
    if any(event.name.startswith(_STARTS) for event in found):
        for event in found:
            if event.name.startswith("$"):
                yield HostCall(event.name[1:], event.start_ns, event.start_ns + event.duration_ns)
