"""What a report needs from a run, read from its files; whatever is missing stays empty."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.config import Config
from kanawa.errors import KanawaError
from kanawa.guarded_read import UnreadableFileError, guarded_json

from kanawa_runtime.goodput.time_log import time_records
from kanawa_runtime.report.well_formed import well_formed
from kanawa_runtime.runs.events import number, read_events, step_records
from kanawa_runtime.runs.run_directory import EVENTS, MOST_CONFIG_BYTES, PLUGINS, read_config

Points = list[tuple[float, float]]


@dataclasses.dataclass
class RunData:
    """Events of one run by kind, and its config where it can be read (else `config_problem` says why not)."""

    path: Path
    name: str
    events: list[dict[str, Any]]
    steps: dict[int, dict[str, Any]]
    config: Config | None
    config_problem: str
    environment: dict[str, Any]
    #: How its attempts spent their seconds; see `goodput.time_log`.
    time_records: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Returns the records of a kind, oldest first."""
        return [record for record in self.events if record["event"] == kind]

    def last(self, kind: str) -> dict[str, Any]:
        """Returns the newest record of a kind, {} where there is none."""
        return next((r for r in reversed(self.events) if r["event"] == kind), {})

    def curve(self, field: str, kind: str = "step") -> Points:
        """Returns (step, value) of a field, "metrics.x" included, where it was recorded."""
        points = []
        # After a resume a step may have two records: the last one is of the state that was kept.
        for step, record in step_records(self.events, kind).items() if kind != "step" else self.steps.items():
            value = field_value(record, field)
            if value is not None:
                points.append((float(step), value))
        return points

    def evaluations(self, field: str = "loss") -> tuple[Points, Points]:
        """Returns (step, value) of evaluations over a part of the held-out data, and of those over more of it.

        Distinguished by how many tokens each was over; where all are alike they are all in the first.
        """
        points, tokens = self.curve(field, "eval"), dict(self.curve("tokens", "eval"))
        if not points:
            return [], []
        least = min((tokens[step] for step, _ in points if step in tokens), default=None)
        partial = [(step, value) for step, value in points if tokens.get(step) == least]
        return partial, [(step, value) for step, value in points if tokens.get(step) != least]

    @property
    def unit(self) -> str:
        """What the run learns from, and speeds count: tokens, or such as images."""
        return str(next(iter(self.steps.values()), {}).get("unit", "tokens"))

    def metric_names(self) -> list[str]:
        """Returns the names of all metrics that steps recorded."""
        return self.keys_of("metrics")

    def keys_of(self, field: str) -> list[str]:
        """Returns the names that a field of steps, an object, has values for."""
        names: set[str] = set()
        for record in self.steps.values():
            values = record.get(field)
            names.update(values if isinstance(values, dict) else {})
        return sorted(names)

    def step_seconds(self) -> Points:
        """Returns (step, seconds since the step before), without what lies between: attempts, saves, evaluations."""
        points: Points = []
        before: dict[str, Any] | None = None
        for record in self.events:
            if record["event"] != "step":
                # A background commit costs the step nothing; everything else breaks the chain.
                before = before if record["event"] == "checkpoint_committed" else None
                continue
            if before is not None and _continues(before, record):
                points.append((float(record["step"]), record["clock"] - before["clock"]))
            before = record
        return sorted(dict(points).items())

    def throughput(self) -> Points:
        """Returns (step, tokens a second)."""
        tokens = dict(self.curve("tokens"))
        return [(s, tokens[s] / t) for s, t in self.step_seconds() if t > 0 and s in tokens]

    def typical_step_seconds(self) -> float | None:
        """Returns the median time of a step; None before the second one."""
        seconds = [seconds for _, seconds in self.step_seconds()]
        return statistics.median(seconds) if seconds else None


def load_run(path: Path) -> RunData:
    """Returns a run's data; raises UnreadableFileError for events that aren't a file, nothing for damaged files."""
    # A report is wanted most of all of a run that broke.
    events = [well_formed(record) for record in read_events(path / EVENTS)]
    config, problem = None, ""
    try:
        config = read_config(path)
    except KanawaError as error:
        problem = str(error)
    try:
        environment = guarded_json(path / PLUGINS, path, most=MOST_CONFIG_BYTES)
    except (OSError, UnreadableFileError):
        environment = {}
    environment = well_formed(environment) if isinstance(environment, dict) else {}
    records = time_records(events)
    data = RunData(path, path.resolve().name, events, step_records(events), config, problem, environment, records)
    return dataclasses.replace(data, environment=environment | data.last("run_started"))


def distinct_names(runs: list[RunData]) -> list[str]:
    """Returns a name for each run; where folders share one, with as much of the path as tells them apart."""
    for depth in range(1, 6):
        names = ["/".join(run.path.resolve().parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def field_value(record: Mapping[str, Any], field: str) -> float | None:
    """Returns a number of a record, None where it has none; "metrics.x" looks inside."""
    value: Any = record
    name, _, rest = field.partition(".")
    value = record.get(name)
    if rest:
        value = value.get(rest) if isinstance(value, dict) else None
    try:
        return None if value is None else number(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _continues(before: dict[str, Any], record: dict[str, Any]) -> bool:
    return (
        before.get("attempt") == record.get("attempt")
        and record.get("step") == before.get("step", -2) + 1
        and isinstance(before.get("clock"), int | float)
        and isinstance(record.get("clock"), int | float)
    )


def unit_of(runs: Sequence[RunData]) -> str:
    """Returns what the runs learn from, in the plural: "tokens" where they differ."""
    units = {run.unit for run in runs}
    return units.pop() if len(units) == 1 else "tokens"
