"""What time records add up to: always the wall time, each second in the category it belongs to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_runtime.goodput.account import CATEGORIES, account


def opened(attempt, started, at):
    return {"kind": "opened", "attempt": attempt, "time": at, "process_started": started, "processes": 1}


def spent(attempt, at, steps, reached, /, **seconds):
    return {"kind": "spent", "attempt": attempt, "time": at, "steps": steps, "step": reached, "seconds": seconds}


def test_an_undisturbed_run():
    lines = [
        opened(1, 100.0, 104.0),
        spent(1, 106.0, 0, 0, restore=2.0),
        {"kind": "began", "attempt": 1, "time": 106.0, "step": 0, "origin": "new"},
        spent(1, 109.0, 0, 0, compile=3.0),
        spent(1, 119.0, 10, 10, step=9.0, data=1.0),
        spent(1, 120.0, 0, 10, save=1.0),
        {"kind": "ended", "attempt": 1, "time": 120.0, "outcome": "done"},
    ]
    drawn = account(lines)
    assert drawn.wall_seconds == 20.0
    assert {name: value for name, value in drawn.seconds.items() if value} == {
        "startup": 4.0, "checkpoint_restore": 2.0, "compile": 3.0, "productive": 9.0, "data": 1.0,
        "checkpoint_save": 1.0,
    }  # fmt: skip
    assert drawn.goodput == 9.0 / 20.0


def test_steps_that_are_taken_again_were_wasted():
    lines = [
        opened(1, 0.0, 1.0),
        spent(1, 11.0, 10, 10, step=10.0),
        {"kind": "lost", "attempt": 1, "time": 11.5, "section": "step", "step": 10},
        opened(2, 20.0, 21.0),
        {"kind": "began", "attempt": 2, "time": 21.0, "step": 6, "origin": "resumed"},
        spent(2, 25.0, 4, 10, step=4.0),
        {"kind": "ended", "attempt": 2, "time": 25.0, "outcome": "done"},
    ]
    drawn = account(lines)
    assert drawn.seconds["productive"] == pytest.approx(10.0)
    assert drawn.seconds["wasted"] == pytest.approx(4.5)
    assert drawn.seconds["down"] == pytest.approx(8.5)
    assert sum(drawn.seconds.values()) == pytest.approx(drawn.wall_seconds)


def test_a_stall_inside_a_step_is_no_productive_time():
    lines = [opened(1, 0.0, 0.0)]
    lines += [spent(1, float(at), 10, 10 * at, step=1.0) for at in range(1, 6)]
    lines += [spent(1, 35.1, 1, 51, step=30.1)]
    drawn = account(lines)
    assert drawn.seconds["stalled"] == pytest.approx(30.0, abs=0.01)
    assert drawn.seconds["productive"] == pytest.approx(5.1, abs=0.01)


def test_no_records_no_account():
    drawn = account([])
    assert (drawn.wall_seconds, drawn.goodput, drawn.attempts) == (0.0, 0.0, 0)
    assert set(drawn.seconds) == set(CATEGORIES)


@given(st.lists(st.tuples(st.floats(0, 5), st.lists(st.tuples(st.integers(0, 5), st.floats(0.01, 9)), max_size=6))))
def test_categories_add_up_whatever_happened(attempts):
    clock, lines, step = 1000.0, [], 0
    for number, (startup, sections) in enumerate(attempts, 1):
        lines.append(opened(number, clock, clock + startup))
        clock += startup
        lines.append({"kind": "began", "attempt": number, "time": clock, "step": step // 2, "origin": "resumed"})
        step //= 2
        for steps, seconds in sections:
            clock, step = clock + seconds, step + steps
            lines.append(spent(number, clock, steps, step, **{"step" if steps else "save": seconds}))
        clock += 0.7
        lines.append({"kind": "lost", "attempt": number, "time": clock, "section": "step", "step": step})
        clock += 3.0
    drawn = account(lines)
    assert sum(drawn.seconds.values()) == pytest.approx(drawn.wall_seconds, rel=1e-9, abs=1e-6)
    assert all(value >= -1e-9 for value in drawn.seconds.values())
