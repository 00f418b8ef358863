"""A machine that is about to be taken away says so somewhere: that stops the run as SIGTERM does, with a save."""

import logging
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

from kanawa.config import Positive
from kanawa.contracts import Run, Service
from kanawa.errors import UsageError

logger = logging.getLogger(__name__)

_ANSWER_BYTES = 4096
_ANSWER_SECONDS = 2.0


class PreemptionNotice(Service):
    """Looks every `every_seconds` for a `file` that appears, or at a `url` that answers with anything but `quiet`.

    A host of Google's says so at `http://metadata.google.internal/computeMetadata/v1/instance/preempted`, with the
    header `Metadata-Flavor: Google`, and `FALSE` as long as nothing is to happen. An address that answers with an
    error, or not at all, says nothing. It runs in every process: in a gang the one that hears of it stops them all at
    one step.
    """

    everywhere: ClassVar[bool] = True

    class Config(Service.Config):
        url: str = ""
        header: str = ""
        quiet: str = "FALSE"
        file: str = ""
        every_seconds: Positive = 5.0

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if bool(cfg.url) == bool(cfg.file):
            message = "a preemption notice comes by `url` or as a `file`; give one of them"
            raise UsageError(message)
        if cfg.url and not cfg.url.startswith(("http://", "https://")):
            message = f"the preemption notice's url is {cfg.url!r}, expected one that begins with http:// or https://"
            raise UsageError(message)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: Run) -> None:
        """Begins to look."""
        self._thread = threading.Thread(target=self._watch, name="preemption-notice", daemon=True)
        self._thread.start()

    def stop(self, run: Run) -> None:
        """Ends it."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(self.config.every_seconds):
            said = self._notice()
            if said is not None:
                logger.warning("this machine is about to be taken away (%s): saving and stopping", said)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _notice(self) -> str | None:
        """Returns what the notice says; None as long as there is none."""
        cfg: Any = self.config
        if cfg.file:
            return cfg.file if Path(cfg.file).exists() else None
        name, _, value = cfg.header.partition(":")
        request = urllib.request.Request(cfg.url, headers={name.strip(): value.strip()} if name else {})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - checked when built
                said = answer.read(_ANSWER_BYTES).decode(errors="replace").strip()
        except (OSError, urllib.error.URLError, ValueError):
            return None
        return None if said == cfg.quiet else said
