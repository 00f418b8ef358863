"""Services beside a run: fed in order, isolated when they raise, left behind when they hang, never waited for."""

import dataclasses
import json
import logging
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from kanawa.contracts import Service, Steer
from kanawa_runtime.services.host import ServiceHost
from kanawa_runtime.train.stop_signals import RunStopped

RUN = SimpleNamespace(directory="/nowhere", attempt=1, start_step=0, config=None)


class Diary(Service):
    """Writes down what it is told, and raises where asked."""

    class Config(Service.Config):
        raises: tuple[str, ...] = ()
        stop_seconds: float = 60.0

    def __init__(self, cfg):
        super().__init__(cfg)
        self.entries = []

    def _note(self, what):
        self.entries.append(what)
        if what in self.config.raises:
            raise RuntimeError(f"no {what} today")  # noqa: EM102

    def start(self, run):
        self._note("start")

    def event(self, run, event):
        self._note(event["event"])

    def stop(self, run):
        self._note("stop")


class Stuck(Diary):
    """Hangs in its first event until released."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.reached, self.released = threading.Event(), threading.Event()

    def event(self, run, event):
        self.reached.set()
        self.released.wait(120)
        super().event(run, event)


def record(kind, **fields):
    return {"event": kind, "attempt": 1, **fields}


def warnings_of(caplog):
    return [r.message for r in caplog.records if r.levelno == logging.WARNING]


def test_events_before_the_start_are_delivered_after_it_in_order():
    diary = Diary.Config().build()
    host = ServiceHost([diary])
    host.feed(record("run_started"))
    host.start(RUN)
    for kind in ("step", "eval", "checkpoint_committed", "run_ended"):
        host.feed(record(kind))
    host.stop()
    assert diary.entries == ["start", "run_started", "step", "eval", "checkpoint_committed", "run_ended", "stop"]


def test_one_failure_is_logged_once_by_name_and_the_third_leaves_the_service_out(caplog):
    bad, good = Diary.Config(raises=("step",)).build(), Diary.Config().build()
    host = ServiceHost([bad, good])
    host.start(RUN)
    for _ in range(10):
        host.feed(record("step"))
    host.stop()
    assert bad.entries == ["start", "step", "step", "step", "stop"]
    assert good.entries.count("step") == 10
    failed, left_out = warnings_of(caplog)
    assert failed == "service Diary failed in event: RuntimeError: no step today; training continues"
    assert left_out == "service Diary is left out for the rest of the run: it failed 3 times"


def test_a_service_that_cannot_start_is_left_out_at_once(caplog):
    bad = Diary.Config(raises=("start",)).build()
    host = ServiceHost([bad])
    host.start(RUN)
    host.feed(record("step"))
    host.stop()
    assert bad.entries == ["start"]
    assert warnings_of(caplog)[-1] == "service Diary is left out for the rest of the run: it could not start"


def test_a_stop_that_raises_is_a_warning(caplog):
    bad = Diary.Config(raises=("stop",)).build()
    host = ServiceHost([bad])
    host.start(RUN)
    host.stop()
    assert "service Diary failed in stop: RuntimeError: no stop today" in warnings_of(caplog)[0]


def test_a_service_that_exits_the_interpreter_only_loses_itself(caplog):
    class Quitter(Diary):
        def event(self, run, event):
            raise SystemExit(3)

    host = ServiceHost([Quitter.Config().build()])
    host.start(RUN)
    host.feed(record("step"))
    host.stop()
    assert "service Quitter failed in event: SystemExit: 3" in warnings_of(caplog)[0]


def test_a_slow_service_loses_events_and_nobody_waits_for_it(caplog):
    slow = Stuck.Config().build()
    host = ServiceHost([slow], capacity=5)
    host.start(RUN)
    host.feed(record("step", step=0))
    assert slow.reached.wait(60)
    began = time.monotonic()
    for step in range(1, 101):
        host.feed(record("step", step=step))
    # Had one of them waited for it, it would be two minutes.
    assert time.monotonic() - began < 60
    host.feed(record("run_ended"))
    slow.released.set()
    host.stop()
    # One was taken, five waited, and the end of the run is never dropped.
    assert slow.entries == ["start", *["step"] * 6, "run_ended", "stop"]
    first, last = warnings_of(caplog)
    assert first == "service Stuck is too slow: 5 events wait for it, and newer ones are dropped; training continues"
    assert last == "service Stuck was too slow: it lost 95 events"


def test_a_hanging_service_is_left_behind_after_its_time(caplog):
    stuck, diary = Stuck.Config(stop_seconds=0.2).build(), Diary.Config().build()
    host = ServiceHost([stuck, diary])
    host.start(RUN)
    host.feed(record("step"))
    host.feed(record("run_ended"))
    assert stuck.reached.wait(60)
    began = time.monotonic()
    host.stop()
    assert time.monotonic() - began < 60
    assert diary.entries[-2:] == ["run_ended", "stop"]
    (warning,) = warnings_of(caplog)
    assert "service Stuck did not stop within 0.2 s and is left behind with 1 events" in warning
    stuck.released.set()


def test_a_run_that_fails_before_its_first_step_starts_and_stops_nothing():
    diary = Diary.Config().build()
    host = ServiceHost([diary])
    host.feed(record("run_started"))
    host.stop()
    assert diary.entries == []


def test_a_service_cannot_change_what_others_see():
    class Vandal(Diary):
        def event(self, run, event):
            event.clear()

    class Keeper(Diary):
        def event(self, run, event):
            self.entries.append(dict(event))

    vandal, keeper = Vandal.Config().build(), Keeper.Config().build()
    host = ServiceHost([vandal, keeper])
    host.start(RUN)
    original = record("step", step=1)
    host.feed(original)
    host.stop()
    assert keeper.entries == ["start", {"event": "step", "attempt": 1, "step": 1}, "stop"]
    assert original == record("step", step=1)


@pytest.mark.parametrize("calls", [0, 1])
def test_stopping_twice_is_harmless(calls):
    host = ServiceHost([Diary.Config().build()])
    if calls:
        host.start(RUN)
    host.stop()
    host.stop()


def test_a_signal_that_meets_a_service_is_no_failure_of_it(caplog):
    class Met(Diary):
        def section(self, run, name, step):
            raise RunStopped

    host = ServiceHost([Met.Config().build()])
    with pytest.raises(RunStopped):
        host.section(RUN, "compile", 0)
    assert not warnings_of(caplog)


class Advising(Diary):
    """Answers what it was made with."""

    steers = True
    answer: object = None

    def steer(self, run, evaluations):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("stop", "TypeError: returned 'stop', expected a Steer or None"),
        (True, "TypeError: returned True, expected a Steer or None"),
        (Steer("slower", rate=-1.0), "ValueError: returned rate=-1.0, expected a finite factor above 0"),
        (Steer("slower", rate=float("nan")), "ValueError: returned rate=nan, expected a finite factor above 0"),
    ],
)
def test_an_answer_that_means_nothing_steers_nothing(answer, said, caplog):
    service = Advising.Config().build()
    service.answer = answer
    assert ServiceHost([service]).steer(RUN, []) == []
    (line,) = warnings_of(caplog)
    assert line == f"service Advising failed in steer: {said}; training continues"


def test_an_answer_of_numpy_becomes_pythons_own():
    service = Advising.Config().build()
    service.answer = Steer("enough", stop=np.float32(2) > 1, rate=np.float32(0.5))
    ((_, steer),) = ServiceHost([service]).steer(RUN, [])
    assert json.dumps(dataclasses.asdict(steer)) == '{"reason": "enough", "stop": true, "save": false, "rate": 0.5}'
