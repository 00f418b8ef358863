"""What a run measured of itself: the times that a simulation of a longer one asks for (`kanawa plan --goodput`)."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.goodput.account import Attempt, attempts_of, typical_step_seconds


def times(records: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]] = ()) -> dict[str, float]:
    """Returns seconds by name, without those that the run never met; empty for a run without a step.

    `start_seconds` runs from a process's start to its first steady step, compiling and restoring left out; `restart`
    from an attempt's end to the next process's start; what a save stops training for and how long it then takes to
    count are of the events. Raises KeyError, TypeError or ValueError for lines of another form.
    """
    attempts = attempts_of(records)
    typical = typical_step_seconds(line for attempt in attempts for line in attempt.lines)
    if typical <= 0:
        return {}
    began = {record["attempt"]: record for record in records if record["kind"] == "began"}
    measured = {"step_seconds": typical}
    steady = _starts(attempts, typical)
    starts = [whole - _spent(attempt, "compile", "restore") for attempt, whole in steady]
    compiles = [_spent(attempt, "compile") for attempt, _ in steady]
    restores = [
        _spent(each, "restore") for each in attempts if began.get(each.number, {}).get("origin") == "resumed"
    ]  # fmt: skip
    downs = [max(0.0, after.started - before.last) for before, after in zip(attempts, attempts[1:], strict=False)]
    blocking, writing = _saves(events)
    for name, values in (
        ("start_seconds", starts),
        # The first one of a run fills the cache that later ones find.
        ("compile_seconds", compiles[1:] or compiles),
        ("restore_seconds", restores),
        ("restart_seconds", downs),
        ("blocking_seconds", blocking),
        ("write_seconds", writing),
    ):
        if values:
            measured[name] = max(0.0, statistics.fmean(values))
    return measured


def waited_for_data(records: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Returns the share of the time of steps in which the device waited for data, and those seconds a step.

    The first second or so of each attempt doesn't count: it waits for the first batch. None for a shorter run. Raises
    as `times` does.
    """
    waited = stepped = steps = 0.0
    for attempt in attempts_of(records):
        taken = [line for line in attempt.lines if int(line["steps"]) and "step" in line["seconds"]]
        for line in taken[1:]:
            waited += float(line["seconds"].get("data", 0.0))
            stepped += float(line["seconds"]["step"])
            steps += int(line["steps"])
    return (waited / (waited + stepped), waited / steps) if steps and waited + stepped > 0 else None


def _starts(attempts: Sequence[Attempt], typical: float) -> list[tuple[Attempt, float]]:
    # Two attempts can't overlap, whatever clocks say.
    ends = [0.0, *(attempt.last for attempt in attempts)]
    reached = [(attempt, _steady(attempt, typical), end) for attempt, end in zip(attempts, ends, strict=False)]
    return [(attempt, at - max(attempt.started, end)) for attempt, at, end in reached if at is not None]


def _steady(attempt: Attempt, typical: float) -> float | None:
    """Returns when an attempt's steps began to take their usual time: the first ones connect and fill caches."""
    for line in attempt.lines:
        steps, stepping = int(line["steps"]), float(line["seconds"].get("step", 0.0))
        if steps and "step" in line["seconds"] and stepping <= steps * typical * 1.5:
            before = sum(float(seconds) for seconds in line["seconds"].values())
            # What the attempt had taken of steps until then was slow, and counts as a start but for their usual time.
            taken = sum(
                int(other["steps"]) for other in attempt.lines if other["time"] < line["time"] and _steps(other)
            )
            return float(line["time"]) - before - taken * typical
    return None


def _steps(line: Mapping[str, Any]) -> bool:
    # A resumed attempt reports the steps before it in a record without a step section.
    return "step" in line["seconds"]


def _spent(attempt: Attempt, *sections: str) -> float:
    return sum(float(line["seconds"].get(name, 0.0)) for line in attempt.lines for name in sections)


def _saves(events: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    blocking, writing = [], []
    for event in events:
        waited, whole = event.get("blocking_seconds"), event.get("seconds")
        if event.get("event") == "checkpoint_committed" and isinstance(waited, float) and isinstance(whole, float):
            blocking.append(waited)
            writing.append(max(0.0, whole - waited))
    return blocking, writing
