"""Where a run comes from: what was typed, in which folder at which commit, and what it ran on."""

from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.report.parts import card, per_run, section, table
from kanawa_runtime.report.run_data import RunData

Runs = Sequence[RunData]
Names = Sequence[str]
_COMMIT_DIGITS = 12


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
