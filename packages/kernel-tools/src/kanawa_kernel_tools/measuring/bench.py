"""Measuring the installed kernels on the devices at hand, and writing the fastest into the tuning table."""

import contextlib
import dataclasses
import fcntl
import json
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.operation import Kernel, Tuning
from kanawa.kernels.platform import current_platform
from kanawa.kernels.selection import supporting_kernels
from kanawa.kernels.tuning_table import FORMAT, Entry, TuningTableError, read_table
from kanawa.plugins.devices import device_spec_of_kind
from kanawa.testing.compare import Examples, examples_for


def add_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Writes entries into a table, in place of those for the same problems on the same device.

    Raises TuningTableError where it can't be written, or what is there isn't a table.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            merged = {entry.place: entry for entry in (*read_table(path), *entries)}
            _replace(path, {"format": FORMAT, "entries": [entry.as_json() for entry in merged.values()]})
    except OSError as error:
        message = f"the tuning table {path} can't be written ({error.strerror or error}); give another with --table"
        raise TuningTableError(message) from error


def _replace(path: Path, content: Any) -> None:
    """Writes a whole file and renames it: a run that starts meanwhile reads the old one or the new one."""
    # Not tempfile's, which only its owner may read: the table may be shared.
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        written.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until no other process adds entries: each would drop what the other measured.

    The lock is on the folder, for it stays while the table is replaced: a lock file would be one more to wonder about.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Network file systems may know no locks; a lost entry there is measured again, a refusal would lose them all.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


#: Differences in one dtype between kernels that are both right, with room: what is beyond is a wrong result.
_LARGEST_DIFFERENCE: Mapping[str, float] = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}
#: A kernel replaces the first of the kernels' own ranking only if it is faster by more than noise.
_NOISE = 0.03
#: A quick kernel that keeps large arrays would fill a memory that the plan counted on.
_MOST_MEMORY, _SPARE_BYTES = 2.0, 64 * 2**20
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 50


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one kernel, with one tuning, took for a problem: forward, and backward where the problem has one.

    Attributes:
        seconds: the median of the rounds; None where it failed.
        temporary_bytes: what it needs beside operands and results, as compiled.
        failure: one line; empty where it ran and agrees with the others.
    """

    kernel: str
    tuning: Tuning = ()
    seconds: float | None = None
    temporary_bytes: int = 0
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the record as `kanawa kernels --bench --json` prints it."""
        return {**dataclasses.asdict(self), "tuning": dict(self.tuning)}


def measure(choice: KernelChoice, *, seconds: float = 1.0) -> list[Measurement]:
    """Returns a Measurement of every installed kernel that supports a chosen problem, the chosen one first.

    Kernels take turns for about `seconds` each, so that what else the machine does reaches all alike.
    Raises KernelError where the operation has no examples to make operands by.
    """
    examples = examples_for(choice.operation)
    problem = choice.local_problem
    _, kind = current_platform()
    device = None if kind is None else device_spec_of_kind(kind)
    candidates = [
        (kernel, tuning)
        for kernel in supporting_kernels(choice.operation, problem)
        for tuning in ((), *kernel.tunings(problem, device))
    ]
    # The chosen one first: it wins a tie.
    candidates.sort(key=lambda one: (one[0].name, one[1]) != (choice.kernel, choice.tuning))
    operands = {name: jnp.asarray(x) for name, x in examples.operands(problem, np.random.default_rng(0)).items()}
    trials = [_Trial.compiled(kernel, tuning, examples, problem, operands) for kernel, tuning in candidates]
    ran = [trial for trial in trials if not trial.failure]
    _agree(ran, examples.reference.name, getattr(problem, "dtype", "float32"))
    _take_turns([trial for trial in trials if not trial.failure], operands, seconds)
    return [trial.measurement() for trial in trials]


def fastest(measurements: list[Measurement]) -> Measurement | None:
    """Returns the one to use: the fastest of those that ran, agree, and need no large temporaries; None without any.

    The first, which would be used without measuring, is replaced only by one that is faster by more than noise.
    """
    ran = [one for one in measurements if not one.failure and one.seconds is not None]
    if not ran:
        return None
    least = min(one.temporary_bytes for one in ran)
    lean = [one for one in ran if one.temporary_bytes <= max(_MOST_MEMORY * least, least + _SPARE_BYTES)]
    best = min(lean, key=_seconds)
    first = measurements[0]
    return first if first in lean and _seconds(first) * (1 - _NOISE) <= _seconds(best) else best


def _seconds(measurement: Measurement) -> float:
    return float("inf") if measurement.seconds is None else measurement.seconds


@dataclasses.dataclass
class _Trial:
    """One kernel being measured."""

    kernel: str
    tuning: Tuning
    run: Callable[[Any], Any] | None = None
    result: Any = None
    temporary_bytes: int = 0
    failure: str = ""
    times: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def compiled(cls, kernel: Kernel, tuning: Tuning, examples: Examples, problem: Any, operands: Any) -> "_Trial":
        """Returns the trial compiled and run once; a failure is part of the answer."""
        from kanawa.kernels.selection import tuned

        trial = cls(kernel.name, tuning)
        try:
            function = _timed(tuned(kernel, tuning), examples, problem)
            compiled = jax.jit(function).lower(operands).compile()
            memory = compiled.memory_analysis()
            trial.temporary_bytes = 0 if memory is None else int(memory.temp_size_in_bytes)
            trial.result = jax.block_until_ready(compiled(operands))
            trial.run = compiled
        # A kernel may fail in any way its libraries know: the others are measured all the same.
        except Exception as error:  # noqa: BLE001
            trial.failure = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return trial

    def measurement(self) -> Measurement:
        """Returns what was seen."""
        seconds = statistics.median(self.times) if self.times and not self.failure else None
        return Measurement(self.kernel, self.tuning, seconds, self.temporary_bytes, self.failure)


def _timed(kernel: Kernel, examples: Examples, problem: Any) -> Callable[[Any], Any]:
    """Returns the call that is timed: the output, and its gradients where the problem is ever differentiated."""

    def outputs(operands: Mapping[str, Any]) -> list[jax.Array]:
        return jax.tree.leaves(examples.specified(problem, operands, call(kernel, problem, operands)))

    def with_gradients(operands: Mapping[str, Any]) -> Any:
        floats = {name: x for name, x in operands.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
        rest = {name: x for name, x in operands.items() if name not in floats}
        out, pull = jax.vjp(lambda floats: outputs({**floats, **rest}), floats)
        # Cotangents that no kernel can guess: of ones, a softmax's gradients vanish.
        return out, pull([jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape).astype(x.dtype) for x in out])

    return with_gradients if examples.differentiable(problem) else outputs


def _agree(trials: list[_Trial], reference: str, dtype: str) -> None:
    """Marks as failed what differs from the reference, or from the first where the reference didn't run."""
    if not trials:
        return
    judge = next((trial for trial in trials if trial.kernel == reference), trials[0])
    right = jax.tree.leaves(judge.result)
    limit = _LARGEST_DIFFERENCE.get(dtype, max(_LARGEST_DIFFERENCE.values()))
    for trial in trials:
        # NumPy's maximum: Python's passes over a NaN that isn't first.
        apart = np.max([_difference(a, b) for a, b in zip(jax.tree.leaves(trial.result), right, strict=True)])
        if not apart <= limit:
            trial.failure = f"differs from {judge.kernel} by {apart:.2g} of the largest value, over {limit:g}"
        trial.result = None


def _difference(ours: jax.Array, right: jax.Array) -> float:
    """Returns the largest difference over the largest magnitude."""
    wide = right.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), initial=0.0), 1e-3)
    return float(jnp.max(jnp.abs(ours.astype(jnp.float32) - wide), initial=0.0) / scale)


def _take_turns(trials: list[_Trial], operands: Any, seconds: float) -> None:
    """Times trials in turns until each has had its seconds, or enough rounds."""
    for _ in range(_MOST_ROUNDS):
        waiting = [t for t in trials if len(t.times) < _LEAST_ROUNDS or sum(t.times) < seconds]
        if not waiting:
            return
        for trial in waiting:
            started = time.perf_counter()
            jax.block_until_ready(trial.run(operands) if trial.run else None)
            trial.times.append(time.perf_counter() - started)
