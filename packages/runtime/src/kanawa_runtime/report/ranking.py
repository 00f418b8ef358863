"""Runs of a sweep as a ranked table: mean and deviation over seeds, and what differs between the points."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError

from kanawa_runtime.report.figures import run_figures

#: What runs are ranked by where nothing is asked for: the first that they have.
METRICS = ("reward", "eval_loss", "loss")
#: Figures of which more is better; of all others less is.
HIGHEST_FIRST = frozenset({"reward", "tokens_per_second", "mfu"})


@dataclasses.dataclass(frozen=True)
class Ranked:
    """One point of a sweep. `mean` and `deviation` (of a sample; None of one run) are over the runs that are done."""

    values: Mapping[str, str]
    mean: float | None
    deviation: float | None
    scores: Mapping[str, float]
    #: Runs by what became of them, those that are done left out: "not started", "failed", "stopped at step 7".
    missing: Mapping[str, str]


def rank(points: Sequence[tuple[Mapping[str, str], Sequence[Path]]], metric: str | None = None) -> list[Ranked]:
    """Returns points, each with its runs, the best mean first and those without one last.

    The best is the lowest, or the highest of HIGHEST_FIRST. `metric` is a key of `report --json`. Raises UsageError
    for one that runs don't have.
    """
    figures = {path: _figures(path) for _, paths in points for path in paths}
    known = [record for record in figures.values() if record is not None]
    chosen = metric or next((name for name in METRICS if any(r.get(name) is not None for r in known)), METRICS[-1])
    if metric is not None and known and not any(isinstance(r.get(metric), int | float) for r in known):
        names = ", ".join(sorted(name for name, value in known[0].items() if isinstance(value, float)))
        message = f"no run has the figure {metric!r}; there are {names}"
        raise UsageError(message)
    ranked = [_ranked(values, {path: figures[path] for path in paths}, chosen) for values, paths in points]
    sign = -1 if chosen in HIGHEST_FIRST else 1
    return sorted(ranked, key=lambda one: math.inf if one.mean is None or math.isnan(one.mean) else sign * one.mean)


def _figures(path: Path) -> dict[str, Any] | None:
    return run_figures([path])[0] if (path / "events.jsonl").exists() else None


def _ranked(values: Mapping[str, str], runs: Mapping[Path, dict[str, Any] | None], metric: str) -> Ranked:
    scores, missing = {}, {}
    for path, record in runs.items():
        if record is None:
            missing[path.name] = "not started"
        elif record["outcome"] != "done" or record.get(metric) is None:
            missing[path.name] = f"{record['outcome'] or 'running'} at step {record['step']}"
        else:
            scores[path.name] = float(record[metric])
    several = len(scores) > 1
    return Ranked(
        values,
        statistics.fmean(scores.values()) if scores else None,
        statistics.stdev(scores.values()) if several else None,
        scores,
        missing,
    )
