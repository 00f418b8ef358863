"""From a run's time records to seconds by category: a pure function, whose categories add up to the wall time."""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: In the order in which a person reads them. `productive` is goodput; all others are what it cost.
CATEGORIES = (
    "productive",
    "wasted",  # steps that were lost with their attempt and taken again
    "stalled",  # what steps took beyond their usual time
    "data",
    "checkpoint_save",
    "checkpoint_restore",
    "compile",
    "startup",
    "evaluation",
    "checks",
    "shutdown",
    "down",  # between the end of an attempt and the start of the next process
)
#: Where the seconds of a section go that isn't a step.
CATEGORY_OF_SECTION = {
    "data": "data",
    "save": "checkpoint_save",
    "restore": "checkpoint_restore",
    "compile": "compile",
    "setup": "startup",
    "initialise": "startup",
    "evaluate": "evaluation",
    "check": "checks",
    "end": "shutdown",
}
#: A step is a stall beyond so many times its usual seconds and so many more.
STALL_FACTOR, STALL_SECONDS = 3.0, 0.5


@dataclasses.dataclass(frozen=True)
class Account:
    """`seconds` by category, which add up to `wall_seconds` but for clocks that disagree."""

    seconds: Mapping[str, float]
    wall_seconds: float
    attempts: int
    steps: int

    @property
    def goodput(self) -> float:
        """The share of the wall time in which steps were taken that count."""
        return self.seconds["productive"] / self.wall_seconds if self.wall_seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns what `--json` shows."""
        return {"goodput": self.goodput, **dataclasses.asdict(self), "seconds": dict(self.seconds)}


@dataclasses.dataclass
class Attempt:
    """The lines of one attempt, opened at wall clock `opened` and last alive at `last`.

    `resumed_at` is the step from which the next one resumed; None for the last.
    """

    number: int
    started: float
    opened: float
    lines: list[Mapping[str, Any]]
    last: float
    section: str = "setup"
    resumed_at: int | None = None


def account(records: Sequence[Mapping[str, Any]]) -> Account:
    """Returns the account of a run's time records (`time_log`); empty for one without an attempt."""
    attempts = attempts_of(records)
    seconds = dict.fromkeys(CATEGORIES, 0.0)
    typical = typical_step_seconds(line for attempt in attempts for line in attempt.lines)
    ended = None
    for attempt in attempts:
        if ended is not None:
            seconds["down"] += max(0.0, attempt.started - ended)
        # Two attempts can't overlap: where clocks say so, the later one begins when the earlier one ended.
        seconds["startup"] += attempt.opened - max(attempt.started, ended or attempt.started)
        before = attempt.opened
        for line in attempt.lines:
            for category, value in categories_of(line, typical, attempt.resumed_at):
                seconds[category] += value
            before = float(line["time"])
        # Between the last record and the last sign of life.
        seconds[tail_category(attempt)] += max(0.0, attempt.last - before)
        ended = max(attempt.last, before)
    wall = (ended or 0.0) - attempts[0].started if attempts else 0.0
    steps = max((int(line["step"]) for attempt in attempts for line in attempt.lines), default=0)
    return Account(seconds, wall, len(attempts), steps)


def attempts_of(records: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """Returns the attempts of time records in order; raises KeyError, TypeError or ValueError for other records."""
    attempts: dict[int, Attempt] = {}
    for record in records:
        number, at = int(record["attempt"]), float(record["time"])
        if record["kind"] == "opened":
            attempts[number] = Attempt(number, float(record["process_started"]), at, [], at)
            continue
        attempt = attempts.get(number)
        if attempt is None:
            continue
        if record["kind"] == "spent":
            attempt.lines.append(record)
        elif record["kind"] == "began":
            earlier = [other for other in attempts.values() if other.number < number]
            for other in earlier:
                # Steps beyond it are taken again, whichever attempt took them.
                step = int(record["step"])
                other.resumed_at = step if other.resumed_at is None else min(other.resumed_at, step)
        elif record["kind"] == "lost":
            attempt.section = str(record["section"])
        attempt.last = max(attempt.last, at)
    return sorted(attempts.values(), key=lambda attempt: attempt.number)


def typical_step_seconds(lines: Iterable[Mapping[str, Any]]) -> float:
    """Returns the usual seconds of a step."""
    each = [line["seconds"].get("step", 0.0) / line["steps"] for line in lines if line["steps"]]
    return statistics.median(each) if each else 0.0


def tail_category(attempt: Attempt) -> str:
    """Returns what an attempt was doing after its last line: a step, or the wait for one, that was lost with it."""
    return "wasted" if attempt.section in ("step", "data") else CATEGORY_OF_SECTION.get(attempt.section, "startup")


def categories_of(line: Mapping[str, Any], typical: float, resumed_at: int | None) -> Iterator[tuple[str, float]]:
    """Yields (category, seconds) of a `spent` record, in order. Steps beyond `resumed_at` were lost."""
    steps, reached = int(line["steps"]), int(line["step"])
    for section, value in line["seconds"].items():
        if section != "step":
            yield CATEGORY_OF_SECTION.get(section, "startup"), value
            continue
        usual = max(1, steps) * typical
        stalled = value - usual if value > usual * STALL_FACTOR + STALL_SECONDS else 0.0
        again = min(steps, max(0, reached - resumed_at)) / steps if resumed_at is not None and steps else 0.0
        yield "productive", (value - stalled) * (1.0 - again)
        yield "wasted", (value - stalled) * again
        yield "stalled", stalled
