"""The report's sections; each returns HTML, or nothing where the runs have nothing to show."""

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kanawa_runtime.report.curves import MEMORY_FIELDS, loss_series, memory_curve, plain_series
from kanawa_runtime.report.goodput import drawn
from kanawa_runtime.report.media import gallery
from kanawa_runtime.report.parts import card, figure, large, per_run, section, table, tile
from kanawa_runtime.report.plot import HALF
from kanawa_runtime.report.resources import model_flops_utilization, utilization_text
from kanawa_runtime.report.run_data import RunData, field_value, unit_of
from kanawa_runtime.runs.media import media_of
from kanawa_runtime.serve.growing_text import visible
from kanawa_runtime.train.screen import human_count, human_duration

Runs = Sequence[RunData]
Names = Sequence[str]

_LEARNING = ("learning_rate", "gradient_norm")
_MOST_METRICS = 24
#: Updates whose mean is a run's reward: that of one update is a few groups of rollouts.
_LAST = 20


def recent_reward(run: RunData) -> float | None:
    """Returns the mean reward of the last updates; None for a run that learns from targets."""
    rewards = [value for _, value in run.curve("reward")[-_LAST:]]
    return statistics.fmean(rewards) if rewards else None


def facts(run: RunData) -> dict[str, str]:
    """Returns the run's key figures as text, in reading order."""
    figures: dict[str, str] = {}
    if run.steps:
        last = max(run.steps)
        total = run.last("run_started").get("total_steps")
        figures["completed updates"] = f"{last:,}" + (f" of {total:,}" if isinstance(total, int) else "")
        figures["last training loss"] = f"{float(run.steps[last].get('loss', 'nan')):.4f}"
    rewards = run.curve("reward")
    if rewards:
        figures[f"mean reward of the last {len(rewards[-_LAST:])} updates"] = f"{recent_reward(run):.4f}"
    bad = [step for step, loss in run.curve("loss") if not math.isfinite(loss)]
    if bad:
        figures["steps with a non-finite loss"] = f"{len(bad)}, first {bad[0]:.0f}"
    measured = (("loss", "evaluation loss"), ("nats_per_byte", "evaluation nats a byte"))
    own = tuple((f"metrics.{name}", f"evaluation {name}") for name in run.last("eval").get("metrics", ()))
    for field, label in (*measured, *own):
        partial, whole = run.evaluations(field)
        if partial or whole:
            over = ", all held-out data" if whole else ""
            figures[label + over] = f"{(whole or partial)[-1][1]:.4f}"
    count = field_value(run.last("program"), "parameters")
    if count is not None:
        figures["parameters"] = large(count)
    rates = [rate for _, rate in run.throughput()]
    if rates:
        figures[f"{run.unit} a second (median)"] = human_count(statistics.median(rates))
    share = model_flops_utilization(run)
    if share is not None:
        figures["MFU"] = utilization_text(share)
    tokens = sum(value for _, value in run.curve("tokens"))
    if tokens:
        figures[f"{run.unit} seen"] = human_count(tokens)
    known = drawn(run)
    if known is not None:
        figures["time"] = human_duration(known[0].wall_seconds)
        figures["of it training"] = f"{known[0].goodput:.0%}"
    attempts = {record.get("attempt") for record in run.events}
    if len(attempts) > 1:
        figures["attempts"] = str(len(attempts))
    ended = run.last("run_ended")
    figures["outcome"] = str(ended.get("outcome", "not ended")) if run.events else "no events"
    return figures


def summary(runs: Runs, names: Names) -> str:
    """Tiles for one run, a table for several."""
    every = [facts(run) for run in runs]
    if len(runs) == 1:
        tiles = "".join(tile(value, label) for label, value in every[0].items())
        return f'<div class="tiles">{tiles}</div>'
    labels = list(dict.fromkeys(label for figures in every for label in figures))
    rows = [[label, *(figures.get(label, "") for figures in every)] for label in labels]
    return section("Side by side", card(table(["", *names], rows, numbers=range(1, len(names) + 1))))


def losses(runs: Runs, names: Names) -> str:
    """The reward of a run that learns from one; loss a token, and a byte where the data are text."""
    rewards = [run.curve("reward") for run in runs]
    reward = figure("Mean reward of the rollouts", plain_series(rewards, names, smooth=True), y_label="reward")
    of = " a token" if unit_of(runs) == "tokens" else ""
    loss = figure(f"Loss{of}", loss_series(runs, names), y_label=f"nats{of}", allow_log=True)
    for name in dict.fromkeys(name for run in runs for name in run.last("eval").get("metrics", ())):
        loss += figure(name.capitalize(), loss_series(runs, names, f"metrics.{name}"), y_label=name)
    per_byte = figure(
        "Loss a byte",
        loss_series(runs, names, "nats_per_byte"),
        y_label="nats a byte",
        note="Independent of the tokenizer, so runs with different ones compare.",
        allow_log=True,
    )
    title = "Reward and loss" if reward else "Loss"
    return section(title, reward + loss + per_byte + _by_source(runs, names)) if reward or loss or per_byte else ""


def _by_source(runs: Runs, names: Names) -> str:
    """Loss and share of tokens by source of a mixture: a curve a source, a figure a run."""
    figures = []
    for run, name in zip(runs, names, strict=True):
        sources = run.keys_of("loss_by_source")
        of = "" if len(runs) == 1 else f", {name}"
        loss = [run.curve(f"loss_by_source.{source}") for source in sources]
        held_out = [run.curve(f"loss_by_source.{source}", "eval") for source in sources]
        tokens = [run.curve(f"tokens_by_source.{source}") for source in sources]
        figures += [
            figure(f"Loss by source{of}", plain_series(loss, sources, smooth=True), y_label="nats a token", size=HALF),
            figure(f"Held-out loss by source{of}", plain_series(held_out, sources), y_label="nats a token", size=HALF),
            figure(f"Tokens by source{of}", plain_series(tokens, sources, smooth=True), y_label="tokens", size=HALF),
        ]
    return _pairs(figures) if any(figures) else ""


def speed(runs: Runs, names: Names) -> str:
    """Throughput, step time, memory."""
    unit = unit_of(runs)
    quantities = (
        (f"{unit.capitalize()} a second", f"{unit} a second", [run.throughput() for run in runs]),
        ("Step time", "seconds", [run.step_seconds() for run in runs]),
        ("Memory a device", "GiB", [memory_curve(run) for run in runs]),
    )
    drawn = [
        figure(title, plain_series(curves, names, smooth=True), y_label=unit, from_zero=True, size=HALF)
        for title, unit, curves in quantities
    ]
    return section("Speed", _pairs(drawn)) if any(drawn) else ""


def learning(runs: Runs, names: Names) -> str:
    """Learning rate, gradient norm and whatever else steps recorded."""
    recorded = dict.fromkeys(name for run in runs for name in run.metric_names())
    others = [n for n in recorded if n not in _LEARNING and f"metrics.{n}" not in MEMORY_FIELDS]
    ordered = [n for n in _LEARNING if n in recorded] + others
    drawn = []
    for name in ordered[:_MOST_METRICS]:
        curves = [run.curve(f"metrics.{name}") for run in runs]
        series = plain_series(curves, names, smooth=name != "learning_rate")
        label = name.replace("_", " ").replace(".", " ")
        is_norm = name == "gradient_norm"
        drawn.append(figure(label.capitalize(), series, y_label=label, allow_log=is_norm, size=HALF))
    more = len(ordered) - _MOST_METRICS
    note = f'<p class="note">{more} more metrics are in events.jsonl.</p>' if more > 0 else ""
    return section("Learning", _pairs(drawn) + note) if any(drawn) else ""


def _pairs(figures: Sequence[str]) -> str:
    return f'<div class="grid2">{"".join(figures)}</div>'


def samples(runs: Runs, names: Names) -> str:
    """What the model made at first, last, and once between: text after a prompt, pictures, or words for media."""
    blocks, writes, about = [], False, "Of the same noise each time."
    for run, name in zip(runs, names, strict=True):
        records = run.of("sample")
        chosen = [records[i] for i in sorted({0, len(records) // 2, len(records) - 1})] if records else []
        for record in chosen:
            text, prompt = visible(str(record.get("text", ""))), str(record.get("prompt", ""))
            where = f"after {record.get('step', '?')} updates" + (f", {name}" if len(runs) > 1 else "")
            shown, about = gallery(media_of(record)), str(record.get("about") or about)
            if not shown:
                shown, writes = f"<pre><b>{escape(prompt)}</b>{escape(text)}</pre>", True
            if record.get("error"):
                shown = f'<p class="warn">none: {escape(str(record["error"]))}</p>'
            blocks.append(card(f"<h3>{escape(where)}</h3>{shown}"))
    said = "The prompt is bold; what follows is the model's, the same draws each time."
    note = f'<p class="note">{said if writes else escape(about)}</p>'
    return section("Samples", note + "".join(blocks)) if blocks else ""


def kernels(runs: Runs, names: Names) -> str:
    """The kernel of each operation, and why others were refused."""
    return per_run("Kernels", runs, names, _kernels)


def _kernels(run: RunData) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for record in run.of("kernel_selected"):
        operation, problem = str(record.get("operation", "")), str(record.get("problem", ""))
        refused = "; ".join(_refusal(entry) for entry in record.get("refused") or [])
        # Each attempt records its choices; those of the last one count.
        rows[operation, problem] = [operation, str(record.get("kernel", "")), problem, refused]
    titles = ["operation", "kernel", "problem on each device", "refused"]
    return table(titles, list(rows.values()), code=True, stacked=True) if rows else ""


def _refusal(entry: Any) -> str:
    if isinstance(entry, dict):
        return f"{entry.get('kernel')}: {entry.get('reason')}"
    return ": ".join(str(part) for part in entry) if isinstance(entry, list | tuple) else str(entry)


def checkpoints(runs: Runs, names: Names) -> str:
    """What was saved, what it cost, and what went wrong."""
    return per_run("Checkpoints", runs, names, _checkpoints)


def _checkpoints(run: RunData) -> str:
    rows = [_saved(record) for record in run.of("checkpoint_committed")]
    warned = "".join(f'<p class="warn">{escape(text)}</p>' for record in run.events if (text := _problem(record)))
    titles = ["updates", "MB", "training waited (ms)", "durable (s)"]
    return warned + (table(titles, rows[-12:], numbers=range(4)) if rows else "")


def _saved(record: Mapping[str, Any]) -> list[str]:
    """Returns a committed checkpoint's row: updates, megabytes, milliseconds waited, seconds."""
    columns = (
        ("step", 1.0, ",.0f"),
        ("bytes", 1e-6, ",.1f"),
        ("blocking_seconds", 1e3, ",.0f"),
        ("seconds", 1.0, ",.2f"),
    )
    row = []
    for field, factor, shown in columns:
        value = field_value(record, field)
        row.append("" if value is None else format(value * factor, shown))
    return row


def _problem(record: Mapping[str, Any]) -> str:
    """Returns what a checkpoint event complains of, "" for any other event."""
    step = record.get("step")
    if record["event"] == "checkpoint_failed":
        return f"step {step} could not be saved: {record.get('error')}"
    if record["event"] == "checkpoint_dropped":
        return f"step {step} was dropped: the step after it was not sound, or never ran"
    if record["event"] == "checkpoint_damaged":
        reasons = "; ".join(str(reason) for reason in record.get("reasons") or [])
        used = record.get("used")
        return f"step {step} was damaged{'' if used is None else f', {used} was used instead'}: {reasons}"
    return ""
