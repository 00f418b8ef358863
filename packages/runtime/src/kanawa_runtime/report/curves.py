"""Which curves a report shows, for one run or several side by side."""

from collections.abc import Sequence

from kanawa_runtime.report.plot import Points, Series, smoothed
from kanawa_runtime.report.run_data import RunData

_COLOURS = 8
#: What a table of byte trigrams scores on all held-out text, in the final evaluation's record.
BASELINE = "trigram_nats_per_byte"
MEMORY_FIELDS = (
    "peak_memory_bytes",
    "memory_bytes",
    "metrics.peak_memory_bytes",
    "metrics.memory_bytes",
)
_GIB = 2.0**30


def loss_series(runs: Sequence[RunData], names: Sequence[str], field: str = "loss") -> list[Series]:
    """Returns the training curve, smoothed over a faint raw one, the evaluations, and the baselines.

    Evaluations over a part of the held-out data and those over all of it are other quantities: joined, the step
    between them would look like a change of the model.
    """
    alone = len(runs) == 1
    series = []
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        raw = run.curve(field)
        colour = index % _COLOURS + 1
        series.append(Series("raw", raw, colour, faint=True))
        series.append(Series("training" if alone else f"{name} training", smoothed(raw), colour))
        partial, whole = run.evaluations(field)
        label, second = ("", 2) if alone else (f"{name} ", colour)
        series.append(Series(f"{label}evaluation{' (part)' if whole else ''}", partial, second, marked=True))
        series.append(Series(f"{label}evaluation (all)", whole, 3 if alone else colour, joined=False))
        baseline = run.curve(BASELINE, "eval") if field == "nats_per_byte" else []
        series.append(Series(f"{label}trigram table", baseline, 8 if alone else colour, level=True))
    return [s for s in series if s.points]


def plain_series(curves: Sequence[Points], names: Sequence[str], *, smooth: bool = False) -> list[Series]:
    """Returns one curve a run, with the raw one behind it where it is smoothed."""
    series = []
    for index, (points, name) in enumerate(zip(curves, names, strict=True)):
        colour = index % _COLOURS + 1
        if smooth:
            series.append(Series("raw", points, colour, faint=True))
        series.append(Series(name, smoothed(points) if smooth else points, colour))
    return [s for s in series if s.points]


def memory_curve(run: RunData) -> Points:
    """Returns (step, GiB) where steps recorded memory, else []."""
    for field in MEMORY_FIELDS:
        points = run.curve(field)
        if points:
            return [(step, value / _GIB) for step, value in points]
    return []
