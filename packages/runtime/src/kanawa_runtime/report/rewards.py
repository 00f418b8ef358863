"""The report's sections about rollouts: each reward's curve, held-out rewards, failures, and completions."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.report.curves import plain_series
from kanawa_runtime.report.parts import figure, per_run, section, table
from kanawa_runtime.report.plot import HALF
from kanawa_runtime.report.run_data import RunData
from kanawa_runtime.serve.growing_text import visible

#: Completions of the newest updates that are shown.
_MOST_ROWS = 24
_MOST_CHARACTERS = 2000


def rewards(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Returns a curve for each of several rewards, the reward on held-out prompts, and counts of what wasn't rated."""
    drawn = []
    for reward in dict.fromkeys(name for run in runs for name in _reward_names(run)):
        for kind, title in (("step", reward), ("eval", f"{reward}, held out")):
            curves = [run.curve(f"rewards.{reward}", kind) for run in runs]
            smooth = kind == "step"
            drawn.append(figure(title, plain_series(curves, names, smooth=smooth), y_label="reward", size=HALF))
    held_out = [run.curve("reward", "eval") for run in runs]
    drawn.insert(0, figure("Reward on held-out prompts", plain_series(held_out, names), y_label="reward", size=HALF))
    alike = [run.curve("groups_alike") for run in runs]
    drawn.append(
        figure("Groups whose rewards are equal", plain_series(alike, names, smooth=True), y_label="share", size=HALF)
    )
    shown = "".join(one for one in drawn if one)
    failed = per_run("Rewards that failed", runs, names, _failures)
    return (section("Rewards", f'<div class="grid2">{shown}</div>') if shown else "") + failed


def _reward_names(run: RunData) -> list[str]:
    names: dict[str, None] = {}
    for record in run.steps.values():
        found = record.get("rewards")
        names |= dict.fromkeys(found if isinstance(found, dict) else {})
    return list(names)


def _failures(run: RunData) -> str:
    counts: collections.Counter[str] = collections.Counter()
    for record in run.steps.values():
        found = record.get("reward_failures")
        for kind, count in (found if isinstance(found, dict) else {}).items():
            counts[str(kind)] += count if isinstance(count, int) else 0
    left_out = sum(int(value) for _, value in run.curve("groups_left_out"))
    if not counts and not left_out:
        return ""
    rows = [[kind.replace("_", " "), f"{count:,}"] for kind, count in counts.items()]
    return table(
        ["rollouts whose reward", "count"], [*rows, ["groups left out of training", f"{left_out:,}"]], numbers=(1,)
    )


def completions(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Returns a table of some rollouts: prompt, completion, rewards, advantage; the newest first."""
    note = '<p class="note">A few of each update, drawn by its number; events.jsonl has more, whole.</p>'
    return per_run("Completions", runs, names, _completions, note)


def _completions(run: RunData) -> str:
    rows: list[list[str]] = []
    for record in reversed(run.of("completions")):
        found = record.get("rows")
        for row in found if isinstance(found, list) else []:
            if isinstance(row, dict):
                rows.append([str(record.get("step", "?")), *_cells(row)])
        if len(rows) >= _MOST_ROWS:
            break
    titles = ["update", "prompt", "completion", "ended by", "rewards", "advantage"]
    return table(titles, rows[:_MOST_ROWS], numbers=(0, 5), stacked=True) if rows else ""


def _cells(row: Mapping[str, Any]) -> list[str]:
    each = row.get("rewards")
    rated = ", ".join(f"{name} {_number(value)}" for name, value in (each if isinstance(each, dict) else {}).items())
    texts = [visible(str(row.get(name, "")))[:_MOST_CHARACTERS] for name in ("prompt", "completion", "finish_reason")]
    return [*texts, rated, _number(row.get("advantage"))]


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)
