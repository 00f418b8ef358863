"""One attempt at a run: what all its parts share, whole from the beginning."""

import dataclasses
from pathlib import Path
from typing import Any, cast

from kanawa.composition.prepare import Prepared
from kanawa.contracts import Checkpointer

from kanawa_runtime.goodput.sections import Sections
from kanawa_runtime.runs.run_directory import RunDirectory
from kanawa_runtime.train.journal import Journal
from kanawa_runtime.train.screen import Screen
from kanawa_runtime.train.stop_signals import StopSignals
from kanawa_runtime.train.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A prepared composition in its directory, with those who record, save, show and watch for signals.

    `total` is the count of updates to reach, `initial` a folder to take the first parameters from,
    `from_step` a committed step to resume from instead of the newest.
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

    @property
    def config(self) -> Any:
        """The frozen config of the trainer."""
        return self.prepared.composition.config

    @property
    def trainer(self) -> Trainer:
        """The workload."""
        return cast(Trainer, self.prepared.workload)
