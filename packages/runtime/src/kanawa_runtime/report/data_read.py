"""The report's section about what was read: documents and records, those that were left out, and waits for them."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kanawa_runtime.report.goodput import figures
from kanawa_runtime.report.parts import per_run, table
from kanawa_runtime.report.run_data import RunData

_COUNTS = (
    "documents",
    "records",
    "pictures",
    "recordings",
    "classes",
    "skipped",
    "cut",
    "unreadable_rows",
    "unreadable_files",
    "tokens",
)


def data_read(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Returns a table of each run's sources: how much was read, how much of it is not learned and why, and waits."""
    return per_run("Data", runs, names, lambda run: _sources(run) + _waits(run))


def _waits(run: RunData) -> str:
    known = figures(run)
    share, seconds = known["data_wait_share"], known["data_wait_seconds_per_step"]
    if share is None:
        return ""
    return f"<p>Waiting for data took {share:.2%} of the time of steps, {seconds * 1e3:.2g} ms a step.</p>"


def _sources(run: RunData) -> str:
    event = run.last("data")
    found = {"all": event} | {name: value for name, value in event.items() if isinstance(value, Mapping)}
    counted = {name: counts for name, account in found.items() if (counts := _counts(account))}
    if not counted:
        return ""
    columns = [column for column in _COUNTS if any(column in counts for counts in counted.values())]
    head = ["source", *(column.replace("_", " ") for column in columns)]
    rows = [[name, *(counts.get(column, "") for column in columns)] for name, counts in counted.items()]
    reasons = [str(reason) for account in found.values() for reason in _listed(account.get("reasons"))]
    listed = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    first = f"<p>Left out, the first of them:</p><ul>{listed}</ul>" if listed else ""
    return table(head, rows, numbers=range(1, len(head))) + first


def _counts(account: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{value:,}" for name in _COUNTS if type(value := account.get(name)) is int}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
