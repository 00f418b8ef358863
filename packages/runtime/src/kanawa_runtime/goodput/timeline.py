"""A run's wall time in order: what it was spent on, where attempts ended, and from where the next ones went on."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kanawa_runtime.goodput.account import (
    Attempt,
    attempts_of,
    categories_of,
    tail_category,
    typical_step_seconds,
)

#: Events that tell of something wrong, or of what was done about it, with how a person reads them.
_EVENTS = {
    "checkpoint_damaged": "a checkpoint was damaged",
    "checkpoint_failed": "a checkpoint couldn't be saved",
    "checkpoint_dropped": "a checkpoint was dropped",
    "loss_spike": "the loss jumped",
    "rewound": "went back to an earlier step",
    "went_back": "went back to an earlier checkpoint",
    "replicas_differ": "replicas computed different numbers",
    "straggler": "a rank was slow",
    "hang_detected": "a process made no progress",
}


@dataclasses.dataclass(frozen=True)
class Piece:
    """Seconds from the run's start, and the category that they belong to."""

    begin: float
    end: float
    category: str


@dataclasses.dataclass(frozen=True)
class Mark:
    """A fault or a recovery, at so many seconds from the run's start."""

    seconds: float
    kind: str
    attempt: int
    text: str


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Pieces in order, which leave no gap, and marks in order."""

    pieces: tuple[Piece, ...]
    marks: tuple[Mark, ...]


def timeline(records: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]] = ()) -> Timeline:
    """Returns the timeline of a run's time records and, for what else happened, of its events.

    Raises KeyError, TypeError or ValueError for lines of another form.
    """
    attempts = attempts_of(records)
    if not attempts:
        return Timeline((), ())
    start = attempts[0].started
    typical = typical_step_seconds(line for attempt in attempts for line in attempt.lines)
    pieces: list[Piece] = []
    for attempt in attempts:
        ended = pieces[-1].end if pieces else 0.0
        begun = max(attempt.started - start, ended)
        if begun > ended:
            pieces.append(Piece(ended, begun, "down"))
        pieces += _of_attempt(attempt, begun, start, typical)
    marks = sorted([*_of_attempts(attempts, records, start), *_of_events(events, start)], key=lambda mark: mark.seconds)
    return Timeline(tuple(_joined(pieces)), tuple(marks))


def _of_attempt(attempt: Attempt, begun: float, start: float, typical: float) -> Iterator[Piece]:
    at = begun
    if attempt.opened - start > at:
        yield Piece(at, attempt.opened - start, "startup")
        at = attempt.opened - start
    for line in attempt.lines:
        # Clocks of lines and of sections differ by a little: a line ends where it was written.
        whole, end = sum(line["seconds"].values()), float(line["time"]) - start
        scale = (end - at) / whole if whole > 0 and end > at else 0.0
        for category, seconds in categories_of(line, typical, attempt.resumed_at):
            yield Piece(at, at + seconds * scale, category)
            at += seconds * scale
        at = max(at, end)
    if attempt.last - start > at:
        yield Piece(at, attempt.last - start, tail_category(attempt))


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yields pieces with neighbours of one category as one, and without those of no length."""
    lasting = (piece for piece in pieces if piece.end > piece.begin)
    for category, group in itertools.groupby(lasting, key=lambda piece: piece.category):
        same = list(group)
        yield Piece(same[0].begin, same[-1].end, category)


def _of_attempts(attempts: Sequence[Attempt], records: Sequence[Mapping[str, Any]], start: float) -> Iterator[Mark]:
    outcomes = {record["attempt"]: str(record["outcome"]) for record in records if record["kind"] == "ended"}
    began = {record["attempt"]: record for record in records if record["kind"] == "began"}
    reached = {each.number: max((int(line["step"]) for line in each.lines), default=0) for each in attempts}
    for before, attempt in zip([None, *attempts], [*attempts, None], strict=True):
        if before is None:
            continue
        outcome = outcomes.get(before.number)
        if attempt is not None or outcome not in (None, "done"):
            how = f"ended: {outcome}" if outcome else f"was lost in its {before.section} section"
            text = f"attempt {before.number} {how}, at step {reached[before.number]}"
            yield Mark(before.last - start, "fault", before.number, text)
        record = None if attempt is None else began.get(attempt.number)
        if attempt is None or record is None:
            continue
        lost = max(0, max(reached[number] for number in reached if number < attempt.number) - int(record["step"]))
        after = float(record["time"]) - before.last
        text = f"attempt {attempt.number} resumed from step {record['step']}, {lost} steps back, {after:.1f} s later"
        yield Mark(float(record["time"]) - start, "recovery", attempt.number, text)


def _of_events(events: Sequence[Mapping[str, Any]], start: float) -> Iterator[Mark]:
    for event in events:
        text, at = _EVENTS.get(str(event.get("event"))), event.get("time")
        if text is None or not isinstance(at, int | float) or isinstance(at, bool):
            continue
        known = {name: event[name] for name in ("step", "rank", "used") if isinstance(event.get(name), int)}
        details = ", ".join(f"{name} {value}" for name, value in known.items())
        attempt = event.get("attempt")
        number = attempt if isinstance(attempt, int) else 0
        yield Mark(max(0.0, float(at) - start), "event", number, f"{text}{': ' * bool(details)}{details}")
