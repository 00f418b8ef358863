"""Time records in order, what they measured, and the report's part that shows both."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_runtime.goodput.account import CATEGORIES, account
from kanawa_runtime.goodput.timeline import timeline
from kanawa_runtime.goodput.times import times
from kanawa_runtime.report import run_figures, write_report


def spent(attempt, at, steps, reached, /, **seconds):
    return {"kind": "spent", "attempt": attempt, "time": at, "steps": steps, "step": reached, "seconds": seconds}


LINES = [
    {"kind": "opened", "attempt": 1, "time": 104.0, "process_started": 100.0, "processes": 2},
    {"kind": "began", "attempt": 1, "time": 104.0, "step": 0, "origin": "new"},
    spent(1, 114.0, 0, 0, compile=10.0),
    # The first step connects: nine seconds of it are none of its own.
    spent(1, 124.0, 1, 1, step=10.0),
    spent(1, 134.0, 10, 11, step=10.0),
    spent(1, 135.0, 0, 11, save=1.0),
    spent(1, 145.0, 10, 21, step=10.0),
    {"kind": "lost", "attempt": 1, "time": 146.0, "section": "step", "step": 21},
    {"kind": "opened", "attempt": 2, "time": 154.0, "process_started": 150.0, "processes": 2},
    spent(2, 157.0, 0, 0, restore=3.0),
    {"kind": "began", "attempt": 2, "time": 157.0, "step": 11, "origin": "resumed"},
    spent(2, 159.0, 11, 11, compile=2.0),
    spent(2, 169.0, 10, 21, step=10.0),
    {"kind": "ended", "attempt": 2, "time": 169.0, "outcome": "done"},
]
EVENTS = [
    {"event": "checkpoint_committed", "time": 137.0, "blocking_seconds": 1.0, "seconds": 3.5, "step": 11, "attempt": 1},
    {"event": "straggler", "time": 140.0, "rank": 1, "step": 15, "attempt": 1},
    {"event": "step", "time": 141.0, "step": 16, "attempt": 1},
]


def test_pieces_leave_no_gap_and_marks_tell_faults_and_recoveries():
    line = timeline(LINES, EVENTS)
    assert [(round(p.begin, 3), round(p.end, 3), p.category) for p in line.pieces] == [
        (0, 4, "startup"), (4, 14, "compile"), (14, 15, "productive"), (15, 24, "stalled"), (24, 34, "productive"),
        (34, 35, "checkpoint_save"), (35, 46, "wasted"), (46, 50, "down"), (50, 54, "startup"),
        (54, 57, "checkpoint_restore"), (57, 59, "compile"), (59, 69, "productive"),
    ]  # fmt: skip
    assert [(mark.seconds, mark.kind, mark.text) for mark in line.marks] == [
        (40.0, "event", "a rank was slow: step 15, rank 1"),
        (46.0, "fault", "attempt 1 was lost in its step section, at step 21"),
        (57.0, "recovery", "attempt 2 resumed from step 11, 10 steps back, 11.0 s later"),
    ]


def test_times_are_what_a_simulation_asks_for():
    measured = times(LINES, EVENTS)
    # From process to first steady step: 24 s less compiling and the one slow step's usual second; 9 s less 5.
    assert measured == pytest.approx(
        {
            "step_seconds": 1.0, "start_seconds": ((24 - 10 - 1) + (9 - 5)) / 2, "compile_seconds": 2.0,
            "restore_seconds": 3.0, "restart_seconds": 4.0, "blocking_seconds": 1.0, "write_seconds": 2.5,
        }
    )  # fmt: skip
    assert times(LINES[:3]) == {} and times([]) == {}


seconds = st.floats(0.001, 100.0)
sections = st.sampled_from(["step", "data", "save", "restore", "compile", "evaluate", "end", "unheard of"])


@given(st.lists(st.tuples(sections, seconds, st.integers(0, 5), st.booleans()), min_size=1, max_size=20))
def test_the_timeline_of_any_records_has_the_accounts_seconds(spans):
    lines, at, step, attempt = [], 10.0, 0, 1
    lines.append({"kind": "opened", "attempt": 1, "time": at, "process_started": 8.0, "processes": 1})
    for section, lasted, steps, dies in spans:
        at += lasted
        taken = steps if section == "step" else 0
        step += taken
        lines.append(spent(attempt, at, taken, step, **{section: lasted}))
        if dies:
            lines.append({"kind": "lost", "attempt": attempt, "time": at + 1, "section": section, "step": step})
            attempt, step = attempt + 1, step // 2
            at += 5.0
            lines.append({"kind": "opened", "attempt": attempt, "time": at, "process_started": at - 2, "processes": 1})
            lines.append({"kind": "began", "attempt": attempt, "time": at, "step": step, "origin": "resumed"})
    drawn, pieces = account(lines), timeline(lines).pieces
    assert pieces[0].begin == 0.0 and pieces[-1].end == pytest.approx(drawn.wall_seconds)
    assert all(a.end == pytest.approx(b.begin) for a, b in zip(pieces, pieces[1:], strict=False))
    for category in CATEGORIES:
        shown = sum(p.end - p.begin for p in pieces if p.category == category)
        assert shown == pytest.approx(drawn.seconds[category], abs=1e-6), category


def written(run, lines):
    """Writes what a run's attempts spent, as events."""
    names = {"opened": "attempt_opened", "began": "prepared", "spent": "time_spent", "ended": "run_ended"}
    events = []
    for line in lines:
        if line["kind"] == "lost":
            lost = {"lost": line["attempt"], "alive_until": line["time"], "section": line["section"]}
            events.append({"event": "attempt_lost", "attempt": 2, "time": 154.0, **lost})
        else:
            events.append({"event": names[line["kind"]], **line, "sections": line.get("seconds")})
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*events, *EVENTS]))


def test_the_report_shows_goodput_faults_and_recoveries(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    written(run, LINES)
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Goodput, faults and recoveries" in page
    assert "30.4% of 1:09 went into steps that count, in 2 attempts." in page
    assert "attempt 2 resumed from step 11, 10 steps back, 11.0 s later" in page
    (figures,) = run_figures([run])
    assert figures["goodput"]["goodput"] == pytest.approx(21 / 69)
    assert figures["times"]["step_seconds"] == 1.0
    assert [mark["kind"] for mark in figures["faults"]] == ["event", "fault", "recovery"]


@pytest.mark.parametrize("wrong", [{"seconds": 5}, {"time": "noon"}, {"attempt": None}, {"steps": []}, {"step": {}}])
def test_damaged_records_leave_the_rest_of_the_report(tmp_path, wrong):
    run = tmp_path / "run"
    run.mkdir()
    lines = [{**line, **wrong} if line["kind"] == "spent" else line for line in LINES]
    written(run, lines)
    write_report([run], tmp_path / "page.html")
    assert "</html>" in (tmp_path / "page.html").read_text()
    json.dumps(run_figures([run]))
