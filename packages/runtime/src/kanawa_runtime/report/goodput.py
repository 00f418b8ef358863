"""Goodput, faults and recoveries: where every second went, in order, by the run's own events."""

from collections.abc import Sequence
from html import escape
from typing import Any

from kanawa_runtime.goodput.account import Account, account
from kanawa_runtime.goodput.timeline import Timeline, timeline
from kanawa_runtime.goodput.times import times, waited_for_data
from kanawa_runtime.report.parts import per_run, table
from kanawa_runtime.report.run_data import RunData
from kanawa_runtime.train.screen import human_duration

#: Categories that are read together, with their colour on the page.
_GROUPS = (
    ("steps that count", ("productive",), 1),
    ("steps taken again", ("wasted",), 2),
    ("stalls", ("stalled",), 3),
    ("evaluation and checks", ("evaluation", "checks"), 4),
    ("checkpoints", ("checkpoint_save", "checkpoint_restore"), 5),
    ("data", ("data",), 6),
    ("starting and compiling", ("startup", "compile"), 7),
    ("down and shutting down", ("down", "shutdown"), 8),
)
_COLOUR = {category: colour for _, categories, colour in _GROUPS for category in categories}
_GLYPHS = {"fault": ("✕", 2), "recovery": ("▲", 1), "event": ("●", 3)}
_MOST_PIECES, _MOST_MARKS = 600, 60
#: What records of another form, or damaged ones, make their readers raise.
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def drawn(run: RunData) -> tuple[Account, Timeline] | None:
    """Returns where a run's seconds went, by category and in order; None for a run without sound records of them."""
    try:
        account_of, line = account(run.time_records), timeline(run.time_records, run.events)
    except _BROKEN:
        return None
    return (account_of, line) if account_of.attempts else None


def figures(run: RunData) -> dict[str, Any]:
    """Returns what `report --json` has: the account, measured times, faults, waits for data; None without records."""
    known = drawn(run)
    if known is None:
        names = ("goodput", "times", "faults", "data_wait_share", "data_wait_seconds_per_step")
        return dict.fromkeys(names)
    marks = [{"seconds": m.seconds, "kind": m.kind, "attempt": m.attempt, "text": m.text} for m in known[1].marks]
    share, seconds = waited_for_data(run.time_records) or (None, None)
    return {
        "goodput": known[0].as_json(),
        "times": times(run.time_records, run.events),
        "faults": marks,
        "data_wait_share": share,
        "data_wait_seconds_per_step": seconds,
    }


def goodput(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The share of the wall time that counts, all of it in order, and a list of what went wrong."""
    return per_run("Goodput, faults and recoveries", runs, names, _goodput)


def _goodput(run: RunData) -> str:
    known = drawn(run)
    if known is None or known[0].wall_seconds <= 0:
        return ""
    whole, line = known
    said = (
        f"{whole.goodput:.1%} of {human_duration(whole.wall_seconds)} went into steps that count, "
        f"in {whole.attempts} attempt{'s' * (whole.attempts != 1)}."
    )
    return "".join([f"<p>{escape(said)}</p>", _bar(line), _marks(line), _legend(whole), _account(whole), _faults(line)])


def _bar(line: Timeline) -> str:
    whole = line.pieces[-1].end if line.pieces else 0.0
    least = whole / _MOST_PIECES
    drawn: list[list[float]] = []
    for piece in line.pieces:
        colour = float(_COLOUR.get(piece.category, 8))
        # What is too short to be seen joins what stands before it.
        if drawn and (drawn[-1][1] == colour or piece.end - piece.begin < least):
            drawn[-1][0] += piece.end - piece.begin
        else:
            drawn.append([piece.end - piece.begin, colour])
    widths = "".join(f'<i style="width:{100 * w / whole:.3f}%;background:var(--c{c:.0f})"></i>' for w, c in drawn)
    return f'<div class="bar">{widths}</div>' if whole > 0 else ""


def _marks(line: Timeline) -> str:
    whole = line.pieces[-1].end if line.pieces else 0.0
    if not line.marks or whole <= 0:
        return ""
    signs = []
    for mark in line.marks[:_MOST_MARKS]:
        glyph, colour = _GLYPHS[mark.kind]
        place = f"left:{min(99.0, 100 * mark.seconds / whole):.2f}%;color:var(--c{colour})"
        signs.append(f'<span style="position:absolute;{place}" title="{escape(mark.text)}">{glyph}</span>')
    return f'<div style="position:relative;height:1.4em">{"".join(signs)}</div>'


def _legend(drawn: Account) -> str:
    texts = []
    for label, categories, colour in _GROUPS:
        seconds = sum(drawn.seconds[category] for category in categories)
        if seconds / drawn.wall_seconds >= 0.001:
            share = f"{label} {human_duration(seconds)} ({seconds / drawn.wall_seconds:.1%})"
            texts.append(f'<span><i style="background:var(--c{colour})"></i>{escape(share)}</span>')
    return f'<div class="legend">{"".join(texts)}</div>'


def _account(drawn: Account) -> str:
    rows = [
        [category.replace("_", " "), f"{seconds:,.1f}", f"{seconds / drawn.wall_seconds:.2%}"]
        for category, seconds in drawn.seconds.items()
        if seconds > 0
    ]
    rows.append(["all", f"{drawn.wall_seconds:,.1f}", "100%"])
    return table(["what", "seconds", "share"], rows, numbers=(1, 2))


def _faults(line: Timeline) -> str:
    rows = [[human_duration(mark.seconds), mark.kind, mark.text] for mark in line.marks[:_MOST_MARKS]]
    more = len(line.marks) - _MOST_MARKS
    if more > 0:
        rows.append(["", "", f"{more} more"])
    return table(["after", "kind", "what happened"], rows) if rows else ""
