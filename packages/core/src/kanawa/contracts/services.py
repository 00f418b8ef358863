"""Parts around a run: storage by URL scheme, services that live beside it, engines that launch it elsewhere."""

import abc
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kanawa.config import Configurable


class Storage(abc.ABC):
    """Files under one URL scheme. Paths are full URLs; all operations raise OSError subclasses."""

    @abc.abstractmethod
    def read(self, path: str) -> bytes:
        """Returns a file's bytes."""

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Replaces a file atomically: readers see the old bytes or the new, never a part."""

    @abc.abstractmethod
    def listing(self, path: str) -> Iterator[str]:
        """Yields the names directly under a directory; nothing where it doesn't exist."""

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file or a directory with all under it."""


class Run(Protocol):
    """What hooks and services see of a run."""

    directory: str
    attempt: int
    config: Any


class Service(Configurable):
    """Something that lives as long as a run: a watchdog, a ledger, a status page. It never changes the maths."""

    @abc.abstractmethod
    def start(self, run: Run) -> None:
        """Called once before the first step."""

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Called with every event the run writes."""
        del run, event

    @abc.abstractmethod
    def stop(self, run: Run) -> None:
        """Called once after the last step, also when the run failed."""


class Engine(Configurable):
    """Hands a run to something that starts processes: a local gang, Slurm, Kubernetes. Never a scheduler itself."""

    @abc.abstractmethod
    def render(self, command: tuple[str, ...], processes: int) -> str:
        """Returns what would be submitted, as text."""

    @abc.abstractmethod
    def launch(self, command: tuple[str, ...], processes: int) -> int:
        """Submits or runs it; returns the exit code of the whole."""
