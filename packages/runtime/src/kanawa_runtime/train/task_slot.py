"""The slot `evaluation.tasks`: what a config in it answers, and what scores a model in training."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

from kanawa.config import Config
from kanawa.contracts import DataSource, Environment, Model


class TaskScorer(abc.ABC):
    """Scores a model in training on tasks."""

    @abc.abstractmethod
    def scores(self, params: Any, state: Any, until: Callable[[], bool]) -> Mapping[str, float] | None:
        """Returns {"task/metric": number}; None where `until()` cut it short. Every process of a gang calls alike."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases threads and memory."""


class TaskSuite(Config):
    """Base of what fills the slot."""

    @abc.abstractmethod
    def scorer(
        self, model: Model, source: DataSource, environment: Environment, *, batch_size: int, processes: int
    ) -> TaskScorer:
        """Returns what scores the model, its tasks read and checked.

        Raises UsageError for tasks that are wrong, or that a run of so many processes can't be scored on. The mesh
        divides rows of `batch_size`.
        """


def with_scores(
    record: dict[str, Any] | None, scorer: TaskScorer | None, params: Any, state: Any, until: Callable[[], bool]
) -> dict[str, Any] | None:
    """Returns an evaluation's record with the scores on tasks as `tasks`; it may have no loss then."""
    scores = None if scorer is None or until() else scorer.scores(params, state, until)
    return record if scores is None else {**(record or {}), "tasks": dict(scores)}
