"""Profiles a window of steps: RUN/profile, for TensorBoard's profile plugin and for ui.perfetto.dev."""

import logging
from pathlib import Path
from typing import Any

import kanawa as kn
from kanawa.config import Size
from kanawa.contracts import Run, Service
from kanawa.errors import UsageError

logger = logging.getLogger(__name__)


class Profiler(Service):
    """Records the updates `first` to `last`, on the device and in Python, of the first process of a run.

    `RUN/profile/plugins/profile/TIME` holds what TensorBoard reads, and there `perfetto_trace.json.gz` what Perfetto
    does. Writing them takes the training thread a few seconds, once.
    """

    class Config(Service.Config):
        first: Size = kn.REQUIRED
        last: Size = kn.REQUIRED
        folder: str = "profile"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if cfg.last < cfg.first:
            message = f"a profile of steps {cfg.first} to {cfg.last} has none: the last is before the first"
            raise UsageError(message)
        self._is_recording = False
        self._is_over = False

    def section(self, run: Run, name: str, step: int) -> None:
        """Begins and ends the recording, between two steps."""
        if self._is_over:
            return
        if self._is_recording and (step >= self.config.last or name == "end"):
            self._end(run)
        # With so many updates complete, the next one is taken.
        elif not self._is_recording and name == "step" and self.config.first <= step + 1 <= self.config.last:
            import jax

            jax.profiler.start_trace(str(self._folder(run)), create_perfetto_trace=True)
            self._is_recording = True

    def start(self, run: Run) -> None:
        """Nothing: the first step of the window begins it."""

    def stop(self, run: Run) -> None:
        """Ends a recording that is still going on."""
        if self._is_recording:
            self._end(run)

    def _end(self, run: Run) -> None:
        import jax

        self._is_recording, self._is_over = False, True
        jax.profiler.stop_trace()
        logger.warning(
            "the profile is in %s: kanawa profile %s says where the time went; or tensorboard --logdir",
            self._folder(run),
            run.directory,
        )

    def _folder(self, run: Run) -> Path:
        return Path(run.directory, self.config.folder)


def profile_modifier(window: str) -> dict[str, Any]:
    """Returns the fields that `--profile steps=A:B` asks for; raises UsageError."""
    name, _, steps = window.partition("=")
    first, _, last = steps.partition(":")
    if name != "steps" or not first.isdecimal() or not last.isdecimal():
        message = f"--profile is {window!r}, expected steps=FIRST:LAST, such as steps=10:20"
        raise UsageError(message)
    return {"first": int(first), "last": int(last)}
