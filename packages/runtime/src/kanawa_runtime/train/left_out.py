"""RUN/left_out.json: batches that are left out of training because the loss diverged on them.

A step's batch is the step's own, counted without those that are left out: a function of the step and of this list, so
that a run that is resumed sees the rows that the uninterrupted one does.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from kanawa.contracts import Batch

from kanawa_runtime.checkpoint.agreement import is_primary, shared_text
from kanawa_runtime.runs.run_directory import LEFT_OUT
from kanawa_runtime.storage.durable import write_durable


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Ranges of batch numbers from 0, first and last, in order and apart; `returns` is how often the run went back."""

    ranges: tuple[tuple[int, int], ...] = ()
    returns: int = 0

    def batch_of(self, step: int) -> int:
        """Returns the number of the batch that comes after so many updates."""
        number = step
        for first, last in self.ranges:
            if number >= first:
                number += last - first + 1
        return number

    def with_steps(self, after: int, until: int) -> "LeftOut":
        """Returns this without the batches of the updates `after + 1` to `until` as well."""
        new = (self.batch_of(after), self.batch_of(until - 1))
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self.ranges, new]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return LeftOut(tuple(merged), self.returns + 1)

    def included(self, batches: Iterator[Batch], number: int) -> Iterator[Batch]:
        """Yields the batches, of which the first has this number, but for those that are left out."""
        for batch in batches:
            if not any(first <= number <= last for first, last in self.ranges):
                yield batch
            number += 1


def read_left_out(run: Path) -> LeftOut:
    """Returns a run's list, as its first process reads it. All processes call. Raises OSError, ValueError."""
    path = run / LEFT_OUT
    own = path.read_text() if is_primary() and path.exists() else '{"batches": [], "returns": 0}'
    record = json.loads(shared_text(own))
    return LeftOut(tuple((int(first), int(last)) for first, last in record["batches"]), int(record["returns"]))


def write_left_out(run: Path, left_out: LeftOut) -> None:
    """Writes the list durably. Raises OSError."""
    if is_primary():
        record = {"batches": left_out.ranges, "returns": left_out.returns}
        write_durable(run / LEFT_OUT, json.dumps(record).encode())
