"""A run's batches: which are left out, how the next is read while the device computes, and how hosts' rows become one.

RUN/left_out.json names batches that are left out of training because the loss diverged on them. A step's batch is a
function of the step and of this list, so that a run that is resumed sees the rows that the uninterrupted one does."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from kanawa.contracts import Batch, DataSource, RolloutBatch
from kanawa.errors import KanawaError, UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime import faults
from kanawa_runtime.checkpoint.agreement import is_primary, shared_text
from kanawa_runtime.runs.run_directory import LEFT_OUT
from kanawa_runtime.storage.durable import write_durable
from kanawa_runtime.train.stop_signals import RunStopped, StopSignals

_MOST_BYTES = 2**24


class DataReadError(KanawaError):
    """The storage of the data fails."""


class ReadAhead:
    """`batch` is the next one; None where the data `ended`, can't be read, or a signal came while it was waited for.

    That it can't be read is an error only where it is needed: a step before it is first evaluated and saved, and after
    the last step it only serves to try the state.
    """

    def __init__(self, batches: Iterator[Batch], stop: StopSignals) -> None:
        self.batch: Batch | None = None
        self.error: Exception | None = None
        self.ended = False
        self._batches = batches
        self._stop = stop
        self.read()

    def read(self) -> None:
        """Reads the next batch."""
        self.batch = None
        try:
            with self._stop.interruptible():
                faults.reached("in_data")
                self.batch = next(self._batches, None)
                self.ended = self.batch is None
        except RunStopped:
            return
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self.error = error

    def check(self) -> None:
        """Raises what reading raised, DataReadError for what the storage did."""
        if isinstance(self.error, OSError):
            message = (
                f"the next batch can't be read: {self.error}. Mend the storage of the data, and run the same command "
                "again: it resumes from the newest checkpoint"
            )
            raise DataReadError(message) from self.error
        if self.error is not None:
            raise self.error


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
        """Returns this without the batches of the updates `after + 1` to `until` as well, after one more return."""
        new = self.with_batches(self.batch_of(after), self.batch_of(until - 1))
        return LeftOut(new.ranges, self.returns + 1)

    def with_batches(self, first: int, last: int) -> "LeftOut":
        """Returns this without these batches as well."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted([*self.ranges, (first, last)]):
            if merged and begin <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        return LeftOut(tuple(merged), self.returns)

    def included(self, batches: Iterator[Batch], number: int) -> Iterator[Batch]:
        """Yields the batches, of which the first has this number, but for those that are left out."""
        for batch in batches:
            if not any(first <= number <= last for first, last in self.ranges):
                yield batch
            number += 1


def asked_to_leave_out(text: str) -> tuple[int, int]:
    """Returns the first and last batch of `--leave-out 16:21`, from 0; raises UsageError."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        message = f"--leave-out {text}: expected FIRST:LAST, batches counted from 1, such as 16:21"
        raise UsageError(message)
    return first - 1, last - 1


def read_left_out(run: Path) -> LeftOut:
    """Returns a run's list, as its first process reads it. All processes call. Raises OSError, ValueError."""
    path = run / LEFT_OUT
    own = '{"batches": [], "returns": 0}'
    if is_primary() and path.exists():
        own = guarded_bytes(path, run, most=_MOST_BYTES).decode()
    record = json.loads(shared_text(own))
    return LeftOut(tuple((int(first), int(last)) for first, last in record["batches"]), int(record["returns"]))


def write_left_out(run: Path, left_out: LeftOut) -> None:
    """Writes the list durably. Raises OSError."""
    if is_primary():
        record = {"batches": left_out.ranges, "returns": left_out.returns}
        write_durable(run / LEFT_OUT, json.dumps(record).encode())


B = TypeVar("B", bound=Batch | RolloutBatch)


def local_rows(abstract: Any) -> range:
    """Returns the rows of the global batch that this process's devices hold; all of them without a mesh.

    They are contiguous, because a mesh keeps each process's devices together along the batch.
    """
    first = jax.tree.leaves(abstract)[0]
    rows = first.shape[0]
    if first.sharding is None:
        return range(rows)
    slices = first.sharding.addressable_devices_indices_map(first.shape).values()
    spans = [index[0].indices(rows) for index in slices]
    return range(min(start for start, _, _ in spans), max(stop for _, stop, _ in spans))


def global_batch(local: B, abstract: B, rows: range) -> B:
    """Returns the global arrays of a batch whose rows `rows` are at hand; NumPy arrays pass through without a mesh."""

    def place(array: Any, spec: Any) -> Any:
        if spec.sharding is None:
            return array

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(spec.shape[0])
            own: np.ndarray = array[start - rows.start : stop - rows.start, *index[1:]]
            return own

        return jax.make_array_from_callback(spec.shape, spec.sharding, part)

    kind: Any = type(abstract)
    whole: B = kind(*(None if s is None else place(a, s) for a, s in zip(local, abstract, strict=True)))
    return whole


def own_rows(array: Any, rows: range) -> np.ndarray:
    """Returns the rows `rows` of a global array [batch, …] that is sharded as a batch is."""
    if array.is_fully_addressable:
        return np.asarray(array)[rows.start : rows.stop]
    own = np.zeros((len(rows), *array.shape[1:]), array.dtype)
    for shard in array.addressable_shards:
        begin, end, _ = shard.index[0].indices(array.shape[0])
        own[begin - rows.start : end - rows.start, *shard.index[1:]] = shard.data
    return own


def weight_of(batch: Any) -> float:
    """Returns what a host's part of a batch weighs: its targets, or where a record has no weights its rows."""
    weights = getattr(batch, "loss_weights", None)
    return float(len(jax.tree.leaves(batch)[0]) if weights is None else np.sum(weights))


def unit_of(source: DataSource) -> dict[str, str]:
    """Returns {"unit": what `tokens` of a record count}; {} of tokens."""
    return {} if source.unit == DataSource.unit else {"unit": source.unit}


def bytes_of(source: DataSource, batch: Any) -> float | None:
    """Returns the bytes of text that a host's part of a batch asks for; None where that means nothing."""
    if not isinstance(batch, Batch | RolloutBatch):
        return None
    return source.target_bytes(np.asarray(batch.target_ids), np.asarray(batch.loss_weights))


def check_vocabulary(source: DataSource, model: Any) -> str | None:
    """Returns what is wrong when the data has ids that a model, by its config, has no row for, else None."""
    if "vocab_size" not in model.fields() or source.vocab_size <= model.vocab_size:
        return None
    return (
        f"data has {source.vocab_size} token ids, but model.vocab_size is {model.vocab_size}; "
        f"set model.vocab_size={source.vocab_size}, or a tokenizer with fewer"
    )
