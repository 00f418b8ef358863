"""Where a run comes from: commands and commits, what it ran on, its config, and how runs differ."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kanawa.config import diff, to_text

from kanawa_runtime.report.parts import card, per_run, section, table
from kanawa_runtime.report.run_data import RunData

Runs = Sequence[RunData]
Names = Sequence[str]
#: Stages of composition that aren't the experiment itself.
_OWN_STAGES = ("default", "code", "recipe", "experiment")
_LONGEST = 200
_COMMIT_DIGITS = 12


def differences(runs: Runs, names: Names) -> str:
    """How each run's config differs from the first one's."""
    if len(runs) < 2 or runs[0].config is None:
        return ""
    blocks = []
    for run, name in list(zip(runs, names, strict=True))[1:]:
        if run.config is None:
            continue
        # A change writes itself as "path: old -> new".
        changes = [str(change).split(": ", 1) for change in diff(runs[0].config, run.config)]
        rows = [[path, *change.split(" -> ", 1)] for path, change in changes]
        shown = table(["path", names[0], name], rows, code=True, stacked=True)
        blocks.append(card(shown if rows else "<p>The configs are equal.</p>"))
    return section("Config differences", "".join(blocks)) if blocks else ""


def assignments(runs: Runs, names: Names) -> str:
    """What targets, modifiers and the command line set on top of the experiment, and what later attempts changed."""
    return per_run("Set on top of the experiment", runs, names, _assignments)


def _assignments(run: RunData) -> str:
    rows = _assigned(run)
    later = [
        [str(change.get(key, ""))[:_LONGEST] for key in ("path", "old", "new")]
        for record in run.of("run_started")
        for change in record.get("config_changes") or []
        if isinstance(change, dict)
    ]
    body = table(["path", "value", "set by"], rows, code=True, stacked=True) if rows else ""
    if later:
        changed = table(["path", "before", "after"], later, code=True, stacked=True)
        body += f"<h3>Changed when resuming</h3>{changed}"
    return body


def _assigned(run: RunData) -> list[list[str]]:
    """Returns (path, value, who) of each field whose last assignment wasn't the experiment's."""
    rows = []
    for path, node in run.config.walk() if run.config is not None else ():
        for field in node.fields():
            whole = f"{path}.{field}" if path else field
            last = run.config.origin_history(whole)[-1] if run.config is not None else None
            if last is not None and last.stage not in _OWN_STAGES:
                rows.append([whole, last.value[:_LONGEST], f"{last.stage} {last.detail}".strip()])
    return rows


def configs(runs: Runs, names: Names) -> str:
    """Each run's config in full, folded."""
    blocks = []
    for run, name in zip(runs, names, strict=True):
        if run.config is None:
            blocks.append(card(f'<p class="warn">{escape(run.config_problem)}</p>'))
            continue
        text = escape(to_text(run.config))
        blocks.append(card(f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>"))
    return section("Config", "".join(blocks))


def launches(runs: Runs, names: Names) -> str:
    """The command of each attempt, its working folder and its commit."""
    return per_run("Commands", runs, names, _launches)


def _launches(run: RunData) -> str:
    rows = [_launch(record) for record in run.of("run_started") if record.get("command")]
    return table(["attempt", "command", "in", "commit"], rows, code=True, stacked=True) if rows else ""


def _launch(record: Mapping[str, Any]) -> list[str]:
    fields = ("attempt", "command", "working_directory")
    return [*(str(record.get(field, "")) for field in fields), _commit(record.get("git"))]


def _commit(git: Any) -> str:
    """Returns "1a2b3c4d5e6f on main, with changes"."""
    if not isinstance(git, dict) or not git.get("commit"):
        return "not in git"
    branch = f" on {git['branch']}" if git.get("branch") not in (None, "", "HEAD") else ""
    return f"{str(git['commit'])[:_COMMIT_DIGITS]}{branch}{', with changes' if git.get('dirty') else ''}"


def environment(runs: Runs, names: Names) -> str:
    """Devices, plugins and libraries of each run's last attempt."""
    labels: dict[str, list[str]] = {}
    for index, run in enumerate(runs):
        record = run.environment
        single = {key: record.get(key) for key in ("devices", "processor", "cores", "processes", "python", "host")}
        for key, value in {**single, **(record.get("plugins") or {}), **(record.get("versions") or {})}.items():
            if value is not None:
                labels.setdefault(key, [""] * len(runs))[index] = str(value)
    rows = [[label, *values] for label, values in labels.items()]
    return section("Environment", card(table(["", *names], rows))) if rows else ""
