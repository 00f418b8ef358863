"""The service: says what the process does on a page of memory, and keeps the process that watches it."""

import contextlib
import faulthandler
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
from kanawa.config import Positive
from kanawa.contracts import Run, Service

from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.goodput.sections import Section
from kanawa_runtime.runs.run_directory import EVENTS, STACKS
from kanawa_runtime.services.watchdog import sidecar
from kanawa_runtime.services.watchdog.beacon import Allowance, Beacon

logger = logging.getLogger(__name__)

_BEAT_SECONDS = 0.5


class Watchdog(Service):
    """Ends the processes of a gang, stacks of all written to `RUN/stacks`, when one of them makes no progress.

    A step or a wait for data may take `step_seconds`; after ten of them ten times the slowest seen, but no less than
    `least_seconds`. Everything else (compiling, saving, evaluating) may take `section_seconds`. A run of one process is
    watched where `alone` says so. Processes end with the code of a lost peer, those that can't with SIGKILL.
    """

    everywhere: ClassVar[bool] = True

    class Config(Service.Config):
        step_seconds: Positive = 600.0
        # A storage that refuses for a minute is tried again for as long: that is no hang of its reader, nor of
        # the others of a gang, which wait for it in their step.
        least_seconds: Positive = 180.0
        section_seconds: Positive = 3600.0
        alone: bool = False

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._allowance = Allowance(cfg.step_seconds, cfg.section_seconds, cfg.least_seconds)
        self._watched: _Watched | None = None
        self._entered: tuple[Section, float] | None = None

    def section(self, run: Run, name: str, step: int) -> None:
        """Says it on the page; the first time, starts the process that reads it."""
        if self._watched is None:
            if jax.process_count() == 1 and not self.config.alone:
                return
            self._watched = _Watched(run)
        section, now = cast(Section, name), time.monotonic()
        if self._entered is not None:
            self._allowance.took(self._entered[0], now - self._entered[1])
        self._entered = (section, now)
        self._watched.beacon.enter(section, step, self._allowance.of(section))

    def start(self, run: Run) -> None:
        """Nothing: the first section has started it."""

    def stop(self, run: Run) -> None:
        """Ends the process that watches."""
        if self._watched is not None:
            self._watched.close()


class _Watched:
    """The page, the file for stacks, and the process that looks at them."""

    def __init__(self, run: Run) -> None:
        self.beacon = Beacon()
        # As the page without a name, and not in the run's folder, whose storage may be what hangs.
        self._file = tempfile.TemporaryFile("w")  # noqa: SIM115 - closed below
        files = (self.beacon.file.fileno(), self._file.fileno())
        # From C, without the interpreter's lock: it works while a thread keeps that.
        faulthandler.register(sidecar.DUMP_SIGNAL, file=self._file, all_threads=True)
        order: dict[str, Any] = {
            "pid": os.getpid(),
            "rank": jax.process_index(),
            "processes": jax.process_count(),
            "terminal": sys.stdin is not None and sys.stdin.isatty(),
            "page": files[0],
            "stacks": files[1],
            "folder": str(Path(run.directory, STACKS, f"attempt-{run.attempt}")),
            "events": str(Path(run.directory, EVENTS)),
            "attempt": run.attempt,
        }
        # A session of its own: Ctrl-C in a terminal is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", sidecar.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=files,
        )
        self._is_closing = False
        for target, name in ((self._beat, "watchdog-beat"), (self._listen, "watchdog")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def close(self) -> None:
        """Ends the watch."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            cast(Any, self._process.stdin).close()
        self._process.wait()
        faulthandler.unregister(sidecar.DUMP_SIGNAL)
        self._file.close()
        self.beacon.close()

    def _beat(self) -> None:
        self.beacon.beat(_BEAT_SECONDS)

    def _listen(self) -> None:
        """Ends this process when the one that watches says so; it has said why."""
        with cast(Any, self._process.stdout) as words:
            if words.read(1) == sidecar.LEAVE:
                os._exit(LOST)
        if not self._is_closing:
            logger.warning("the process that watches this one has ended; a hang of this process won't be detected")
