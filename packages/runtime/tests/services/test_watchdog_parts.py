"""The watchdog's parts that need no gang: what sections may take, who is to blame, what a page says."""

import os
import subprocess
import sys
import time

from kanawa.testing.service import ServiceConformance
from kanawa_runtime.services.watchdog import Watchdog
from kanawa_runtime.services.watchdog.beacon import Allowance, Beacon
from kanawa_runtime.services.watchdog.sidecar import (
    LOCKED,
    STALLED,
    STOPPED,
    WAITING,
    Sidecar,
    process_state,
    read_page,
    suspected,
)


class TestWatchdog(ServiceConformance):
    def config(self):
        return Watchdog.Config(alone=True)


def test_steps_are_learned_and_sections_are_not():
    allowance = Allowance(step_seconds=600, section_seconds=3600, least_seconds=60)
    # The first steps wait for whoever compiles longest.
    assert allowance.of("step") == allowance.of("compile") == 3600
    for _ in range(2):
        allowance.took("step", 1.0)
    assert allowance.of("step") == 600
    for _ in range(10):
        allowance.took("step", 8.0)
    assert allowance.of("step") == 80
    allowance.took("step", 100.0)
    assert allowance.of("step") == 600
    for _ in range(10):
        allowance.took("data", 0.1)
        allowance.took("save", 0.1)
    assert allowance.of("save") == 3600


def test_a_wait_for_data_may_end_with_a_wait_for_the_step():
    allowance = Allowance(step_seconds=600, section_seconds=3600, least_seconds=60)
    for _ in range(10):
        allowance.took("step", 1.0)
        allowance.took("data", 0.01)
    assert allowance.of("data") == 60
    allowance.took("step", 40.0)
    assert allowance.of("data") == 400


def sidecar(tmp_path, parent):
    return Sidecar({"pid": parent, "folder": str(tmp_path / "folder")})


def test_records_of_a_run_that_was_here_before_ask_nobody_to_end(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "rank-1.json").write_text("{}")
    watching = sidecar(tmp_path, os.getppid())
    assert not watching._is_asked()
    (folder / "rank-0.json").write_text('{"rank": 0}')
    assert watching._is_asked()
    assert watching._read_verdicts() == [{"rank": 0}]


WATCHED = """
import os, sys, time
from types import SimpleNamespace
from kanawa_runtime.services.watchdog import Watchdog

service = Watchdog.Config(alone=True).build()
service.section(SimpleNamespace(directory=sys.argv[1], attempt=1), "step", 1)
os.write(1, str(service._watched._process.pid).encode())
time.sleep(1000)
"""


def test_a_killed_process_leaves_no_files(tmp_path):
    temporary, run = tmp_path / "tmp", tmp_path / "run"
    temporary.mkdir()
    command = [sys.executable, "-c", WATCHED, str(run)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        watching = int(os.read(process.stdout.fileno(), 20))
        process.kill()
    deadline = time.monotonic() + 60
    while process_state(watching) not in ("", "Z") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []


def verdict(rank, state, step):
    return {"rank": rank, "state": state, "step": step, "host": "h", "section": "step"}


def test_the_one_that_keeps_the_others_waiting_is_named():
    waiting = [verdict(rank, WAITING, 8) for rank in (0, 2, 3)]
    for state in (STOPPED, LOCKED):
        assert suspected([*waiting, verdict(1, state, 8)]) == [verdict(1, state, 8)]
    stalled = [verdict(rank, STALLED, 8) for rank in (0, 2, 3)]
    assert suspected([*stalled, verdict(1, STALLED, 7)]) == [verdict(1, STALLED, 7)]
    assert suspected(stalled) == stalled
    assert suspected([]) == []


def test_a_page_says_what_was_written_last():
    beacon = Beacon()
    try:
        assert read_page(beacon.file.fileno()) is None
        beacon.enter("compile", 7, 30.0)
        page = read_page(beacon.file.fileno())
        assert (page["section"], page["step"]) == ("compile", 7)
        assert page["deadline"] - page["entered"] == 30.0
    finally:
        beacon.close()
