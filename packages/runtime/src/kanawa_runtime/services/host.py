"""Runs a run's services beside the training: each on a thread of its own, behind a bounded queue.

A service may be slow, hang or raise. The training loses nothing by it but the service's own output.
"""

import collections
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kanawa.contracts import Run, Service, Steer
from kanawa.errors import INTERRUPTIONS
from kanawa.plugins.fault import how_to_skip, named_after, plugin_behind

logger = logging.getLogger(__name__)

#: Events that wait for one service; at a few hundred bytes each, less than a megabyte.
CAPACITY = 2000
#: Failures after which a service sees no more events.
MOST_FAILURES = 3
#: Always queued, however full: without its end a run looks like one that was killed.
_NEVER_DROPPED = ("run_started", "run_ended")


class ServiceHost:
    """Starts, feeds and stops services; no call raises or waits, but `stop` for at most each one's `stop_seconds`."""

    def __init__(self, services: Sequence[Service], capacity: int = CAPACITY) -> None:
        self._lanes = [_Lane(service, capacity) for service in services]

    def start(self, run: Run) -> None:
        """Starts every service on its own thread; what was fed before is delivered first."""
        for lane in self._lanes:
            lane.start(run)

    def section(self, run: Run, name: str, step: int) -> None:
        """Tells every service what the training thread, which calls, does next."""
        for lane in self._lanes:
            lane.section(run, name, step)

    def feed(self, event: Mapping[str, Any]) -> None:
        """Queues an event for every service; safe from any thread."""
        for lane in self._lanes:
            lane.feed(event)

    def steer(self, run: Run, evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, Steer]]:
        """Returns what services ask of the training, with their names."""
        asked = ((lane.name, lane.steer(run, evaluations)) for lane in self._lanes)
        return [(name, steer) for name, steer in asked if steer is not None]

    def stop(self) -> None:
        """Ends every service after the events that it still has; gives up on those that take too long."""
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.join()


class _Lane:
    """One service, its queue and its thread."""

    def __init__(self, service: Service, capacity: int) -> None:
        self._service = service
        self.name = type(service).__name__
        self._capacity = capacity
        self._events: collections.deque[Mapping[str, Any]] = collections.deque()
        self._changed = threading.Condition()
        self._ending = False
        self._deadline = float("inf")
        self._dropped = 0
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self, run: Run) -> None:
        # A daemon: a service that hangs must not keep the process, and with it the accelerators, from ending.
        self._thread = threading.Thread(target=self._live, args=(run,), name=f"service-{self.name}", daemon=True)
        self._thread.start()

    def section(self, run: Run, name: str, step: int) -> None:
        if self._failures < MOST_FAILURES and not self._ending:
            self._tried("section", functools.partial(self._service.section, run, name, step))

    def steer(self, run: Run, evaluations: Sequence[Mapping[str, Any]]) -> Steer | None:
        answers: list[Steer | None] = []
        if self._service.steers and self._failures < MOST_FAILURES:
            self._tried("steer", lambda: answers.append(_checked(self._service.steer(run, evaluations))))
        return answers[0] if answers else None

    def feed(self, event: Mapping[str, Any]) -> None:
        with self._changed:
            if self._failures >= MOST_FAILURES or self._ending:
                return
            if len(self._events) >= self._capacity and event.get("event") not in _NEVER_DROPPED:
                self._drop(1)
                return
            # A copy: the record also goes to hooks, and a service on another thread must not see it change.
            self._events.append(dict(event))
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ending = True
            self._deadline = time.monotonic() + self._service.config.stop_seconds
            self._changed.notify()

    def join(self) -> None:
        if self._thread is None:
            return
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        with self._changed:
            waiting = len(self._events)
            if self._thread.is_alive():
                logger.warning(
                    "service %s did not stop within %g s and is left behind with %d events; give it longer with its "
                    "stop_seconds",
                    self.name,
                    self._service.config.stop_seconds,
                    waiting,
                )
            elif self._dropped:
                logger.warning("service %s was too slow: it lost %d events", self.name, self._dropped)

    def _drop(self, count: int) -> None:
        if not self._dropped:
            logger.warning(
                "service %s is too slow: %d events wait for it, and newer ones are dropped; training continues",
                self.name,
                len(self._events),
            )
        self._dropped += count

    def _live(self, run: Run) -> None:
        """Runs on the service's thread, from start to stop."""
        if not self._tried("start", functools.partial(self._service.start, run)):
            # Without a start there is nothing that events could go to, and nothing to stop.
            self._leave_out("it could not start")
            return
        while (event := self._next()) is not None:
            self._tried("event", functools.partial(self._service.event, run, event))
            if self._failures >= MOST_FAILURES:
                self._leave_out(f"it failed {MOST_FAILURES} times")
                break
        self._tried("stop", functools.partial(self._service.stop, run))

    def _next(self) -> Mapping[str, Any] | None:
        """Waits for the next event; None at the end."""
        with self._changed:
            while not self._events:
                if self._ending:
                    return None
                self._changed.wait()
            return self._events.popleft()

    def _tried(self, what: str, call: Callable[[], None]) -> bool:
        """Makes one call; a failure is logged the first time, with its traceback."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - a stranger's code may even call sys.exit
            if isinstance(error, INTERRUPTIONS) and threading.current_thread() is threading.main_thread():
                raise  # the service was only what a signal met
            self._failures += 1
            if self._failures == 1:
                behind = plugin_behind(error)
                # What the host refuses of an answer has no frame of the plugin's.
                advice = named_after(type(self._service)) if behind is None else f"; {how_to_skip(behind)}"
                logger.warning(
                    "service %s failed in %s: %s: %s; training continues%s",
                    self.name,
                    what,
                    type(error).__name__,
                    error,
                    advice,
                    exc_info=not advice,
                )
            return False
        return True

    def _leave_out(self, why: str) -> None:
        with self._changed:
            self._failures = MOST_FAILURES
            self._events.clear()
        logger.warning("service %s is left out for the rest of the run: %s", self.name, why)


def _checked(answer: object) -> Steer | None:
    """Returns what `steer` answered, as Python's own numbers; raises TypeError or ValueError for others."""
    if answer is None:
        return None
    if not isinstance(answer, Steer):
        message = f"returned {answer!r}, expected a Steer or None"
        raise TypeError(message)
    rate = float(answer.rate)
    if not (math.isfinite(rate) and rate > 0):
        message = f"returned rate={answer.rate}, expected a finite factor above 0"
        raise ValueError(message)
    return Steer(str(answer.reason), bool(answer.stop), bool(answer.save), rate)
