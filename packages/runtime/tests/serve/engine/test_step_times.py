"""When a step is put together: shortly before the one that runs ends, as far as its kind is known."""

import threading

import pytest
from kanawa_runtime.serve.engine import batching, step_times
from kanawa_runtime.serve.engine.step_times import StepTimes


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(step_times, "time", made)
    return made


def ran(times, clock, kind, seconds, **how):
    times.begin()
    clock.sleep(seconds)
    times.end(kind, **{"exactly": True, **how})


def waited(times, clock, kind, ends=lambda: False):
    times.begin()
    began = clock.now
    times.wait_until_due(kind, ends)
    return clock.now - began


def test_a_step_is_due_shortly_before_the_one_that_runs_ends(clock):
    times = StepTimes()
    assert waited(times, clock, "a") == 0.0
    ran(times, clock, "a", 0.1)
    times.count_sending(0.02)
    assert waited(times, clock, "a") == pytest.approx(0.1 - 0.25 * 0.02 - 0.0015)
    assert waited(times, clock, "b") == 0.0
    # A device that is ready sooner isn't left idle.
    assert waited(times, clock, "a", lambda: True) == 0.0


def test_shorter_times_count_at_once_and_longer_ones_by_and_by(clock):
    times = StepTimes()
    for seconds in (0.1, 0.04, 0.08):
        ran(times, clock, "a", seconds, decoded=2)
    assert times.decode_seconds == pytest.approx((0.04 + 0.25 * 0.04) / 2)
    # An end that was seen late says nothing of longer ones.
    ran(times, clock, "a", 0.5, exactly=False)
    assert waited(times, clock, "a") < 0.05


def test_a_host_that_comes_late_begins_sooner(clock):
    times = StepTimes()
    ran(times, clock, "a", 0.1)
    before = waited(times, clock, "a")
    for _ in range(3):
        ran(times, clock, "a", 0.1, exactly=False)
    assert waited(times, clock, "a") == pytest.approx(before - 7 * 0.0015)
    for _ in range(100):
        ran(times, clock, "a", 0.1)
    assert waited(times, clock, "a") == pytest.approx(before)


def test_a_thread_whose_step_hangs_is_left_behind_and_named(monkeypatch, caplog):
    released = threading.Event()
    thread = threading.Thread(target=released.wait, name="kanawa-engine", daemon=True)
    thread.start()
    monkeypatch.setattr(batching, "_END_SECONDS", 0.01)
    batching.end_thread(thread)
    assert "kanawa-engine hasn't ended within 0.01 s of being asked to: what it runs hangs" in caplog.text
    released.set()
    thread.join()
