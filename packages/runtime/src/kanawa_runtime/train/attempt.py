"""One attempt at a run: what all its parts share, and the journal that its facts go to."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from kanawa.composition.prepare import Prepared
from kanawa.contracts import Checkpointer
from kanawa.plugins import host

from kanawa_runtime.goodput.sections import Sections
from kanawa_runtime.goodput.time_log import TimeLog
from kanawa_runtime.runs.run_directory import RunDirectory
from kanawa_runtime.services.host import ServiceHost
from kanawa_runtime.train.branch import Branch
from kanawa_runtime.train.screen import Screen
from kanawa_runtime.train.stop_signals import StopSignals
from kanawa_runtime.train.trainer import Trainer

#: Kinds of events that plugins observe through a hook.
_HOOKS = {
    "step": "kanawa_step_ended",
    "checkpoint_committed": "kanawa_checkpoint_committed",
    "run_ended": "kanawa_run_ended",
}


class Journal:
    """Writes each fact once and passes it on; safe from several threads."""

    def __init__(self, run: RunDirectory, services: ServiceHost, time_log: TimeLog | None = None) -> None:
        self.run = run
        self._time_log = time_log
        self._log = run.events()
        self._services = services
        #: Saves in a row that failed, and when one counted last, or the attempt began.
        self.failed_saves, self.saved_at = 0, time.monotonic()

    def write(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Appends an event to the log, tells hooks and services of it, and returns the record."""
        if kind == "run_ended" and self._time_log is not None:
            self._time_log.end()
        record = self._log.write(kind, **fields)
        if kind in _HOOKS:
            host().notify(_HOOKS[kind], run=self.run, event=record)
        self._services.feed(record)
        return record

    def checkpoint(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Takes what a checkpointer reports, on its thread."""
        if kind == "checkpoint_committed":
            self.failed_saves, self.saved_at = 0, time.monotonic()
        elif kind == "checkpoint_failed" and "tier" not in fields:
            self.failed_saves += 1
        self.write(kind, **fields)

    def started(self, step: int) -> None:
        """The state of `step` is there: services start, and plugins hear of it."""
        self.run.start_step = step
        if self._time_log is not None:
            self._time_log.began(step)
        self._services.start(self.run)
        host().notify("kanawa_run_started", run=self.run)

    def close(self) -> None:
        """Ends the services, the last event included."""
        self._services.stop()


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A prepared composition in its directory, with those who record, save, show and watch for signals.

    `total` is the count of updates to reach, `initial` a folder to take the first parameters from,
    `from_step` a committed step to resume from instead of the newest, `leave_out` batches to leave out from now on,
    `branch` where a new run goes on from.
    """

    prepared: Prepared
    run: RunDirectory
    journal: Journal
    checkpoints: Checkpointer
    screen: Screen
    stop: StopSignals
    sections: Sections
    total: int
    initial: Path | None = None
    from_step: int | None = None
    leave_out: tuple[int, int] | None = None
    branch: Branch | None = None

    @property
    def config(self) -> Any:
        """The frozen config of the trainer."""
        return self.prepared.composition.config

    @property
    def trainer(self) -> Trainer:
        """The workload."""
        return cast(Trainer, self.prepared.workload)
