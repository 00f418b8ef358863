"""The report as one HTML file that needs nothing else: no network, no fonts, no other file."""

import html
import time
from collections.abc import Sequence
from pathlib import Path

from kanawa_runtime.report import sections
from kanawa_runtime.report.configs import assignments, configs, differences, environment, launches
from kanawa_runtime.report.data_read import data_read
from kanawa_runtime.report.evaluations import evaluations
from kanawa_runtime.report.goodput import goodput
from kanawa_runtime.report.parts import asset
from kanawa_runtime.report.resources import memory, parameters, utilization
from kanawa_runtime.report.rewards import completions, rewards
from kanawa_runtime.report.run_data import RunData, distinct_names, load_run
from kanawa_runtime.report.task_scores import task_scores
from kanawa_runtime.storage.durable import write_durable


def write_report(runs: Sequence[Path], out: Path) -> None:
    """Writes the page about one run, or a comparison of several; partial logs give a partial page."""
    data = [load_run(Path(run)) for run in runs]
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_durable(out, render(data).encode())


def render(runs: Sequence[RunData]) -> str:
    """Returns the page's text."""
    names = distinct_names(list(runs))
    title = html.escape(" · ".join(names) if names else "no runs")
    # What a reader asks first comes first: did it learn, what does it write, how fast; what it was, last.
    built = [
        sections.summary(runs, names),
        sections.losses(runs, names),
        rewards(runs, names),
        evaluations(runs, names),
        task_scores(runs, names),
        sections.samples(runs, names),
        completions(runs, names),
        data_read(runs, names),
        goodput(runs, names),
        sections.speed(runs, names),
        utilization(runs, names),
        memory(runs, names),
        parameters(runs, names),
        sections.learning(runs, names),
        sections.kernels(runs, names),
        sections.checkpoints(runs, names),
        launches(runs, names),
        environment(runs, names),
        differences(runs, names),
        assignments(runs, names),
        configs(runs, names),
    ]
    style, script = asset("colours.css", "page.css", "plot.css"), asset("pointer.js")
    written = time.strftime("%Y-%m-%d %H:%M")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>\n<style>{style}</style></head>\n<body><main>"
        f"<h1>{title}</h1><p>Kanawa run report, written {written}</p>\n"
        + "\n".join(part for part in built if part)
        + f'\n</main><div id="tip"></div><script>{script}</script></body></html>\n'
    )
