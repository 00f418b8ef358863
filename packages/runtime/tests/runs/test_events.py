"""The event log: exact numbers, torn lines, attempts, a full disk."""

import json
import logging
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.runs.events import (
    EventLog,
    EventLogError,
    number,
    read_events,
    step_records,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=64) | st.floats(width=32), max_size=8))
def test_floats_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    with EventLog(path) as log:
        for step, value in enumerate(values):
            log.write("step", step=step, loss=value)
    found = [number(r["loss"]) for r in read_events(path)]
    for one, other in zip(found, values, strict=True):
        if math.isnan(other):
            assert math.isnan(one)
        else:
            assert struct.pack("d", one) == struct.pack("d", other)


def test_each_line_is_strict_json_and_nonfinite_numbers_are_strings(tmp_path: Path) -> None:
    with EventLog(tmp_path / "e") as log:
        log.write(
            "step",
            step=np.int64(3),
            loss=jnp.float32("nan"),
            metrics={"up": math.inf, "down": [-math.inf]},
        )

    def refuse(constant: str) -> None:
        pytest.fail(f"not JSON: {constant}")

    [line] = (tmp_path / "e").read_text().splitlines()
    record = json.loads(line, parse_constant=refuse)
    assert (record["event"], record["attempt"], record["step"]) == ("step", 1, 3)
    assert record["loss"] == "nan"
    assert record["metrics"] == {"up": "inf", "down": ["-inf"]}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_accepted_and_cut_off_before_appending(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("step", step=0, loss=1.5)
        log.write("step", step=1, loss=2.5)
    path.write_bytes(path.read_bytes()[:-cut])
    whole = 2 if cut == 1 else 1
    assert len(read_events(path)) == whole
    with EventLog(path) as log:
        assert log.attempt == 2
        log.write("step", step=1, loss=3.5)
    records = read_events(path)
    assert [r["attempt"] for r in records] == [1] * whole + [2]
    assert path.read_bytes().count(b"\n") == whole + 1
    assert step_records(records)[1]["loss"] == 3.5


def test_a_damaged_line_in_the_middle_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "a"}\n\0\0\0\n[1]\n{"event": "b"}\n')
    with caplog.at_level(logging.WARNING):
        assert [r["event"] for r in read_events(path)] == ["a", "b"]
    assert "line 2 can't be read" in caplog.text
    assert "line 3 can't be read" in caplog.text


def test_after_a_resume_the_last_record_of_a_step_wins_in_step_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for steps in ((0, 1, 2), (1, 2, 3)):
        with EventLog(path) as log:
            for step in steps:
                log.write("step", step=step, loss=float(log.attempt))
    found = step_records(read_events(path))
    assert {step: r["loss"] for step, r in found.items()} == {0: 1.0, 1: 2.0, 2: 2.0, 3: 2.0}
    assert list(found) == [0, 1, 2, 3]


def test_lines_from_threads_do_not_mix(tmp_path: Path) -> None:
    with EventLog(tmp_path / "e") as log:
        threads = [
            threading.Thread(target=lambda t=t: [log.write("x", thread=t, n=n) for n in range(50)]) for t in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_events(tmp_path / "e")) == 200


def test_a_full_disk_holds_events_back_and_loses_none(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e")
    log.write("step", step=0, text="x" * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        for step in range(1, 5):
            log.write("step", step=step, text="x" * 100)
        assert log.sync() is False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [r["step"] for r in read_events(tmp_path / "e")] == [0]
    log.write("step", step=5)
    log.close()
    assert [r["step"] for r in read_events(tmp_path / "e")] == [0, 1, 2, 3, 4, 5]


def test_lost_events_are_an_error_at_the_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        log.write("step", step=1)
        with pytest.raises(EventLogError, match="1 events could not be written"):
            log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from kanawa_runtime.runs.events import EventLog\n"
        "log = EventLog(Path(sys.argv[1]))\n"
        "for step in range(10): log.write('step', step=step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "events.jsonl"
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=os.environ, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert [r["step"] for r in read_events(path)] == list(range(10))


def test_other_processes_write_nothing() -> None:
    with EventLog(None) as log:
        assert log.write("step", step=1)["attempt"] == 1
