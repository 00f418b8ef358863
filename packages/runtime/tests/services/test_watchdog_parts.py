"""The watchdog's parts that need no gang: what sections may take, who is to blame, what a page says."""

from kanawa.testing.service import ServiceConformance
from kanawa_runtime.services.watchdog import Watchdog
from kanawa_runtime.services.watchdog.allowance import Allowance
from kanawa_runtime.services.watchdog.beacon import Beacon
from kanawa_runtime.services.watchdog.sidecar import LOCKED, STALLED, STOPPED, WAITING, read_page, suspected


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
    assert (allowance.of("data"), allowance.of("save")) == (60, 3600)


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


def test_a_page_says_what_was_written_last(tmp_path):
    from pathlib import Path

    beacon = Beacon()
    try:
        assert read_page(Path(beacon.path)) is None
        beacon.enter("compile", 7, 30.0)
        page = read_page(Path(beacon.path))
        assert (page["section"], page["step"]) == ("compile", 7)
        assert page["deadline"] - page["entered"] == 30.0
    finally:
        beacon.close()
    assert read_page(tmp_path / "none") is None
