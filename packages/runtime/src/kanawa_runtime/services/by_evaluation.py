"""Services that steer a run by its evaluations: stop early, lower the rate, hold on to the best checkpoint."""

import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kanawa.config import NonNegative, Partial, Size
from kanawa.contracts import Run, Service, Steer
from kanawa.errors import UsageError

from kanawa_runtime.checkpoint.layout import EVENTS
from kanawa_runtime.runs.events import number

logger = logging.getLogger(__name__)


class Watching(Service):
    """Compares evaluations by a `metric`; one counts as better where it improves by more than `least_change`."""

    steers: ClassVar[bool] = True

    class Config(Service.Config):
        """`metric` is a key of the records of kind "eval", or of their `tasks` or `sets`, such as "words/acc".

        Lower is better, unless `higher_is_better`.
        """

        metric: str = "loss"
        higher_is_better: bool = False
        least_change: NonNegative = 0.0

    def start(self, run: Run) -> None:
        """Nothing: all is in the records of evaluations."""

    def stop(self, run: Run) -> None:
        """Nothing."""

    def scores(self, evaluations: Sequence[Mapping[str, Any]]) -> list[float]:
        """Returns the metric of each evaluation, lower for better, infinite where it isn't finite.

        Raises UsageError where a record hasn't it.
        """
        found = []
        for record in evaluations:
            value = number(self.value_in(record))
            value = -value if self.config.higher_is_better else value
            found.append(value if math.isfinite(value) else math.inf)
        return found

    def value_in(self, record: Mapping[str, Any]) -> Any:
        """Returns the metric of an evaluation as it is recorded; raises UsageError, with near names, without one."""
        numbers = {**record.get("sets", {}), **record.get("tasks", {}), **record}
        if self.config.metric not in numbers:
            names = [name for name, value in numbers.items() if isinstance(value, int | float)]
            message = f"an evaluation has no {self.config.metric!r}; its numbers: {', '.join(names)}"
            raise UsageError(message)
        return numbers[self.config.metric]

    def best(self, scores: Sequence[float]) -> int:
        """Returns the index of the last evaluation that was better than all before it."""
        best = 0
        for index, score in enumerate(scores):
            if score < scores[best] - self.config.least_change:
                best = index
        return best


class EarlyStopping(Watching):
    """Ends the run where `patience` evaluations in a row brought nothing better; the run counts as done."""

    class Config(Watching.Config):
        patience: Size = 3

    def steer(self, run: Run, evaluations: Sequence[Mapping[str, Any]]) -> Steer | None:
        """Asks to stop once nothing has improved for `patience` evaluations."""
        best = self.best(self.scores(evaluations))
        if len(evaluations) - 1 - best < self.config.patience:
            return None
        record = evaluations[best]
        return Steer(
            f"{self.config.metric} was best at step {record['step']} ({self.value_in(record):.4g}), "
            f"{self.config.patience} evaluations ago",
            stop=True,
        )


class RateOnPlateau(Watching):
    """Multiplies the learning rate by `factor` where `patience` evaluations in a row brought nothing better."""

    class Config(Watching.Config):
        patience: Size = 2
        factor: Partial = 0.5

    def steer(self, run: Run, evaluations: Sequence[Mapping[str, Any]]) -> Steer | None:
        """Asks for a lower rate, and again after as many evaluations more."""
        scores = self.scores(evaluations)
        since = len(scores) - 1 - self.best(scores)
        if since == 0 or since % self.config.patience:
            return None
        return Steer(
            f"{self.config.metric} has not improved for {since} evaluations: the rate times {self.config.factor:g}",
            rate=self.config.factor,
        )


class BestCheckpoint(Watching):
    """Saves a step that evaluates better than all before, and keeps it in `RUN/best`, which opens as a run.

    The run's own retention doesn't touch it. Only for runs in a folder.
    """

    class Config(Watching.Config):
        folder: str = "best"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._best: int | None = None

    def steer(self, run: Run, evaluations: Sequence[Mapping[str, Any]]) -> Steer | None:
        """Asks for a save of the newest evaluation's step where it is the best."""
        if self.best(self.scores(evaluations)) != len(evaluations) - 1:
            return None
        record = evaluations[-1]
        self._best = int(record["step"])
        return Steer(f"the best {self.config.metric} yet, {self.value_in(record):.4g}", save=True)

    def event(self, run: Run, event: Mapping[str, Any]) -> None:
        """Takes over the best step once it is committed."""
        if event.get("event") == "checkpoint_committed" and event["step"] == self._best:
            self._keep(run, Path(event["path"]), int(event["step"]))

    def _keep(self, run: Run, checkpoint: Path, step: int) -> None:
        """Puts a run with this one checkpoint in the place of the last best one; at no time there is none."""
        folder = Path(run.directory, self.config.folder)
        beside, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for file in Path(run.directory).glob("[!.]*.json"):
            shutil.copy2(file, beside)
        shutil.copy2(Path(run.directory, EVENTS), beside)
        shutil.copytree(checkpoint, beside / "checkpoints" / str(step), copy_function=_linked)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        beside.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
        logger.info("step %d is the best yet: kept in %s", step, folder)


def _linked(source: str, target: str) -> None:
    """Links a file that nobody changes any more; copies it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
