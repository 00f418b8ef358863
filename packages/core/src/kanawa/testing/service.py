"""Conformance of a service: it lives beside a run, leaves nothing behind and never disturbs it."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from kanawa.contracts import Run, Service
from kanawa.testing.conformance import ConfiguredConformance

#: What a run may report, odd cases included; a service must take events it has never heard of.
EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "run_started", "attempt": 1, "step": 0, "total_steps": 3},
    {"event": "step", "attempt": 1, "step": 1, "loss": 2.5, "tokens": 64, "seconds": 0.1},
    {"event": "step", "attempt": 1, "step": 2, "loss": "nan", "tokens": 64, "seconds": 0.1},
    {"event": "eval", "attempt": 1, "step": 2, "loss": 2.4},
    {"event": "checkpoint_committed", "attempt": 1, "step": 2, "path": "checkpoints/2"},
    {"event": "an event of an unknown plugin", "attempt": 1},
    {"event": "run_ended", "attempt": 1, "step": 3, "outcome": "done"},
)


class ServiceConformance(ConfiguredConformance):
    """Subclasses return the service's config, with short intervals; the run is a folder without a trainer."""

    #: How long `stop` may take on the author's machine.
    stop_seconds: ClassVar[float] = 10.0

    def run_of(self, folder: Path) -> Run:
        """Returns what the service sees of a run."""
        return SimpleNamespace(directory=str(folder), attempt=1, start_step=0, config=self.config())

    @pytest.fixture
    def run(self, tmp_path: Path) -> Run:
        """A run in a fresh folder."""
        return self.run_of(tmp_path)

    def stopped(self, service: Service, run: Run) -> None:
        """Stops the service; fails where that raises or takes longer than a trainer would wait."""
        raised: list[BaseException] = []

        def stop() -> None:
            try:
                service.stop(run)
            except Exception as error:
                raised.append(error)

        # Daemon, so that a `stop` that never returns fails this test and doesn't hang the session.
        stopping = threading.Thread(target=stop, name="stopping", daemon=True)
        stopping.start()
        stopping.join(self.stop_seconds)
        assert not stopping.is_alive(), f"stop still runs after {self.stop_seconds} s: give what it waits for a limit"
        assert not raised, f"stop raised {raised[0]!r}"

    def test_it_sees_a_run_from_start_to_end_and_leaves_no_thread(self, run: Run) -> None:
        before = set(threading.enumerate())
        service = self.config().build()
        service.start(run)
        for event in EVENTS:
            service.event(run, dict(event))
        self.stopped(service, run)
        left = [t.name for t in set(threading.enumerate()) - before if t.is_alive()]
        assert not left, f"threads still run after stop: {left}"

    def test_events_are_not_changed(self, run: Run) -> None:
        service = self.config().build()
        service.start(run)
        try:
            for event in EVENTS:
                received = dict(event)
                service.event(run, received)
                assert received.keys() == event.keys()
                # `v != v`: a NaN is as it was, though it equals nothing.
                assert all(received[k] == v or v != v for k, v in event.items())
        finally:
            service.stop(run)

    def test_what_it_asks_of_the_training_follows_from_the_evaluations_alone(self, run: Run) -> None:
        evaluations = [{"event": "eval", "step": step, "loss": 2.5 + 0.1 * (step % 3)} for step in range(1, 9)]
        first, second = self.config().build(), self.config().build()
        for upto in range(1, len(evaluations) + 1):
            given = [dict(record) for record in evaluations[:upto]]
            asked = first.steer(run, given)
            assert given == evaluations[:upto], "steer changed the records"
            assert asked is None or first.steers, "what steers says so: steers = True"
        assert second.steer(run, evaluations) == asked, "after a resume it would ask for something else"

    def test_a_run_that_fails_at_once_can_be_stopped(self, run: Run) -> None:
        service = self.config().build()
        service.start(run)
        self.stopped(service, run)

    def test_it_takes_a_run_that_goes_on(self, tmp_path: Path) -> None:
        for attempt in (1, 2):
            run = self.run_of(tmp_path)
            run.attempt, run.start_step = attempt, 2 * (attempt - 1)  # type: ignore[misc]
            service = self.config().build()
            service.start(run)
            for event in EVENTS:
                service.event(run, {**event, "attempt": attempt})
            self.stopped(service, run)

    def test_two_runs_do_not_share_state(self, tmp_path: Path) -> None:
        for number in (1, 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            service = self.config().build()
            service.start(self.run_of(folder))
            service.stop(self.run_of(folder))
