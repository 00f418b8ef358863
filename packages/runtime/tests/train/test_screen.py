"""What a person sees: plain lines where there is no terminal, a line that fits any width where there is one."""

import io
import logging
import re
import time

import pytest
from kanawa_runtime.train import screen
from kanawa_runtime.train.screen import LineScreen, Pace, Screen, human_count, human_duration
from kanawa_runtime.train.terminal import TerminalScreen, bar_line


def record(step, **changes):
    return {"event": "step", "step": step, "loss": 2.5, "nats_per_byte": 1.25, "tokens": 4096} | changes


@pytest.fixture
def clock(monkeypatch):
    """A monotonic clock that tests move."""
    now = [1000.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    return now


def test_one_line_at_the_start_one_each_interval_and_one_at_the_end(clock):
    lines = []
    shown = LineScreen(lines.append)
    shown.begin(100, 0)
    for step in range(1, 101):
        clock[0] += 0.5
        shown.step(record(step))
    assert [int(re.match(r"step (\d+)/100", line)[1]) for line in lines] == [1, 21, 41, 61, 81, 100]
    assert lines[1] == "step 21/100  loss 2.5000  1.2500 nats/byte  8.2k tokens/s  0:39 left"


def test_evaluations_are_always_said():
    lines = []
    LineScreen(lines.append).evaluation({"step": 5, "loss": "nan", "nats_per_byte": 1.0})
    assert lines == ["step 5: evaluation loss nan  1.0000 nats/byte"]


def test_a_library_caller_hears_of_it_through_logging(caplog):
    with caplog.at_level(logging.INFO, logger=screen.__name__):
        LineScreen().say("starting")
    assert caplog.messages == ["starting"]


def test_plain_lines_name_a_phase_that_takes_a_while_and_no_other(monkeypatch):
    monkeypatch.setattr(screen, "_ANNOUNCE_SECONDS", 60)
    lines = []
    shown = LineScreen(lines.append)
    with shown.phase("reading data"):
        pass
    monkeypatch.setattr(screen, "_ANNOUNCE_SECONDS", 0.05)
    monkeypatch.setattr(screen, "_AGAIN_SECONDS", 0.1)
    deadline = time.monotonic() + 60
    with shown.phase("compiling"):
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert lines[0] == "compiling ..."
    assert len(lines) > 1
    assert all(line.startswith("compiling ...") for line in lines)
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_a_phase_ends_also_where_it_fails():
    shown = LineScreen([].append)
    with pytest.raises(OSError, match="gone"), shown.phase("reading data"):
        raise OSError("gone")  # noqa: EM101


def test_other_processes_say_nothing(capsys):
    silent = Screen()
    with silent.phase("compiling"):
        silent.begin(3, 0)
        silent.step(record(1))
        silent.evaluation(record(1))
    silent.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_the_bar_fits_its_width_and_keeps_steps(width, clock):
    run = Pace(350, 100)
    for step in range(101, 142):
        clock[0] += 0.5
        run.take(record(step))
    line = bar_line(run, run.parts(record(141)), width)
    assert len(line) <= width
    assert "141/350" in line
    assert "━" in line
    assert ("loss 2.5000" in line) == (width >= 40)
    assert ("left" in line) == (width >= 80)


def test_the_bar_is_full_at_the_end_and_empty_at_the_start():
    assert "╌" not in bar_line(_at(10, 10), [], 40)
    assert "━" not in bar_line(_at(0, 10), [], 40)


def _at(done, total):
    return Pace(total, done)


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_shows_phase_bar_and_lines_that_stay(width):
    file = io.StringIO()
    shown = TerminalScreen(file, width)
    with shown.phase("compiling the step"):
        assert re.fullmatch(r"[|/\\-] compiling the step 0:00", shown.live_line(width))
    shown.say("resuming at step 1 from runs/a/checkpoints/1")
    shown.begin(3, 1)
    shown.step(record(2))
    assert "2/3" in shown.live_line(width)
    with shown.phase("step 2: evaluating"):
        assert "evaluating" in shown.live_line(width)
    shown.evaluation(record(2))
    shown.step(record(3))
    shown.close()
    shown.close()
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "resuming at step 1 from runs/a/checkpoints/1" in written
    assert "step 2: evaluation loss 2.5000" in written
    assert "3/3" in written
    assert file.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is given back"


def test_log_lines_stay_out_of_the_live_line(capsys):
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    before = handler.stream
    try:
        shown = TerminalScreen(width=60)
        assert handler.stream is not before or not shown._console.is_terminal
        shown.close()
        assert handler.stream is before
    finally:
        logging.getLogger().removeHandler(handler)


def test_numbers_for_people():
    assert [human_count(v) for v in (0, 950, 9_230, 1_400_000, 2e9)] == [
        "0",
        "950",
        "9.2k",
        "1.4M",
        "2.0G",
    ]
    assert [human_duration(v) for v in (42.9, 725, 11220)] == ["0:42", "12:05", "3:07:00"]
