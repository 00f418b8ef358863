"""What lives beside a run: a logger, a watchdog, a status page. It sees every event and never changes the maths."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from kanawa.config import Config, Configurable, NonNegative


class Run(Protocol):
    """What services and hooks see of a run."""

    @property
    def directory(self) -> str:
        """The run's folder, as an absolute path."""

    @property
    def attempt(self) -> int:
        """The number of this opening of the run, from 1."""

    @property
    def start_step(self) -> int:
        """Updates that were complete when this attempt began: 0, or the step of the checkpoint it resumed from.

        Records of later steps that an earlier attempt wrote are void: this attempt makes those steps again.
        """

    @property
    def config(self) -> Config:
        """The experiment's frozen config."""


@dataclasses.dataclass(frozen=True)
class Steer:
    """What a service asks of the training after an evaluation, and why: to stop, to save, another learning rate.

    `rate` multiplies the learning rate from here on, on top of what was asked before; the learner must be `steerable`.
    """

    reason: str
    stop: bool = False
    save: bool = False
    rate: float = 1.0


class Service(Configurable):
    """One entry of the trainer's `services` slot; a component of kind "services".

    The trainer builds it in every process, before anything expensive, so `__init__` is the place to raise a UsageError
    for what is missing (a library, an account). The rest runs in the primary process only, unless the service is
    `everywhere`, on a thread of the service's own: `start`, then `event` for each event in order, then `stop`. What
    these raise is logged, never fatal, and after three failures the service is left out. A slow service loses events
    (counted in a warning) rather than stall a step.
    """

    #: Whether it runs in every process of a gang, as what watches over a process does; events of others than the first
    #: are in no file.
    everywhere: ClassVar[bool] = False
    #: Whether `steer` is asked after each evaluation.
    steers: ClassVar[bool] = False

    class Config(Configurable.Config):
        """`stop_seconds`: how long the end of a run waits for the service's last events and its `stop`."""

        stop_seconds: NonNegative = 10.0

    @abc.abstractmethod
    def start(self, run: Run) -> None:
        """Called once, before the first step and the first event."""

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Called with every event of this attempt as `events.jsonl` holds it, but for those of where its seconds went.

        Kinds that it doesn't know are no error.

        Non-finite numbers are the strings "nan", "inf" and "-inf".
        """
        del run, event

    def steer(self, run: Run, evaluations: Sequence[Mapping[str, Any]]) -> Steer | None:
        """Returns what to ask of the training, or None; called in the first process, on the thread that trains.

        `evaluations` are the run's records of kind "eval" up to now, oldest first, those of earlier attempts included
        and those of steps that are made again left out. An answer that follows from them alone is the same after a
        resume. In a gang all processes do what is asked here, at the same step.
        """
        del run, evaluations
        return None

    def section(self, run: Run, name: str, step: int) -> None:
        """Called whenever the training enters a section of its life, such as "compile", "save", and at every "step".

        On the thread that trains, which waits for it: take a note and return. The first call comes before `start`.
        """
        del run, name, step

    @abc.abstractmethod
    def stop(self, run: Run) -> None:
        """Called once after the last event, also when the run failed or was interrupted.

        The trainer waits for it a limited time, so that a hanging network can't keep accelerators.
        """
