"""Scores on tasks while training: a curve of each metric, and the last of them in a table."""

from collections.abc import Sequence

from kanawa_runtime.report.parts import card, figure, section, table
from kanawa_runtime.report.plot import NARROW, Series
from kanawa_runtime.report.run_data import Points, RunData
from kanawa_runtime.runs.events import number, step_records

_ERROR = "_stderr"
_COLOURS = 8


def task_scores(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Returns a figure for each task's metric, and each run's first and last numbers with their standard errors."""
    curves = [_curves(run) for run in runs]
    metrics = list(dict.fromkeys(name for each in curves for name in each if not name.endswith(_ERROR)))
    if not metrics:
        return ""
    figures, rows = [], []
    for metric in metrics:
        series = [
            Series(name, each[metric], index % _COLOURS + 1, marked=True)
            for index, (each, name) in enumerate(zip(curves, names, strict=True))
            if metric in each
        ]
        figures.append(figure(metric, series, y_label=metric.rpartition("/")[2], size=NARROW))
        for each, name in zip(curves, names, strict=True):
            if metric in each:
                errors = dict(each.get(metric + _ERROR, []))
                first, last = each[metric][0], each[metric][-1]
                rows.append([name, metric, _shown(first, errors), f"{last[0]:,.0f}", _shown(last, errors)])
    head = ["", "metric", "at first", "updates", "at last"]
    if len(runs) == 1:
        head, rows = head[1:], [row[1:] for row in rows]
    return section("Tasks", card(table(head, rows, numbers=range(len(head) - 3, len(head)))) + "".join(figures))


def _curves(run: RunData) -> dict[str, Points]:
    """Returns (step, value) by "task/metric"; what isn't a number is left out."""
    curves: dict[str, Points] = {}
    for step, record in step_records(run.events, "eval").items():
        scores = record.get("tasks")
        for name, value in scores.items() if isinstance(scores, dict) else ():
            try:
                curves.setdefault(str(name), []).append((float(step), number(value)))
            except (TypeError, ValueError, OverflowError):
                continue
    return {name: sorted(points) for name, points in curves.items() if points}


def _shown(point: tuple[float, float], errors: dict[float, float]) -> str:
    step, value = point
    return f"{value:.4f} ± {errors[step]:.4f}" if step in errors else f"{value:.4f}"
