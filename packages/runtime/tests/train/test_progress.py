"""Progress without a terminal: few lines, all numbers."""

import logging
import re

import pytest
from kanawa_runtime.train import progress as module
from kanawa_runtime.train.progress import Progress, human_count, human_duration, progress_bar


def _record(step: int) -> dict[str, object]:
    return {"event": "step", "step": step, "loss": 2.5, "nats_per_byte": 1.25, "tokens": 4096}


def test_one_line_at_the_start_one_each_interval_and_one_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO, logger=module.__name__), progress_bar(100) as progress:
        for step in range(1, 101):
            now += 0.5
            progress.step(_record(step))
    lines = [record.message for record in caplog.records]
    assert [int(re.match(r"step (\d+)/100", line)[1]) for line in lines] == [1, 21, 41, 61, 81, 100]
    assert lines[1] == "step 21/100  loss 2.5000  1.2500 nats/byte  8.2k tokens/s  0:39 left"


def test_evaluations_are_always_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=module.__name__):
        Progress(10).evaluation({"step": 5, "loss": "nan", "nats_per_byte": 1.0})
    assert caplog.messages == ["step 5: evaluation loss nan  1.0000 nats/byte"]


def test_the_bar_takes_the_same_records(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with progress_bar(3) as progress:
        for step in range(1, 4):
            progress.step(_record(step))
        progress.evaluation(_record(3))
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "loss 2.5000" in said
    assert "evaluation" in said


def test_numbers_for_people() -> None:
    assert [human_count(v) for v in (0, 950, 9_230, 1_400_000, 2e9)] == [
        "0",
        "950",
        "9.2k",
        "1.4M",
        "2.0G",
    ]
    assert [human_duration(v) for v in (42.9, 725, 11220)] == ["0:42", "12:05", "3:07:00"]
