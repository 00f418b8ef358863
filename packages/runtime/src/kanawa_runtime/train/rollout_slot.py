"""The trainer's slot `rollouts`: what a config in it answers, and what writes the batches of a run."""

import abc
from collections.abc import Mapping
from typing import Any

from kanawa.config import Config
from kanawa.contracts import Batch, CausalLM, DataSource, Environment, RolloutBatch

#: A batch and its figures, which go into the events of its steps.
Made = tuple[RolloutBatch, dict[str, Any]]


class RolloutWriter(abc.ABC):
    """Makes a run's batches of what the model in training writes."""

    @abc.abstractmethod
    def batch(self, prompts: Batch, params: Any, state: Any, step: int) -> Made:
        """Returns the batch of the update after `step` updates, and its figures; each row of `prompts` has one."""

    @abc.abstractmethod
    def saved(self, step: int) -> dict[str, Any]:
        """Returns, as JSON, what a run that resumes after `step` updates can't make again."""

    @abc.abstractmethod
    def resume(self, saved: Mapping[str, Any]) -> None:
        """Takes what `saved` returned; raises UsageError where it belongs to other parameters."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases threads and memory."""


class RolloutConfig(Config):
    """Base of what fills the slot. Batches then hold what the model has written after each row of data."""

    @property
    @abc.abstractmethod
    def has_reference(self) -> bool:
        """Whether batches hold log-probabilities of the run's first parameters."""

    @property
    @abc.abstractmethod
    def reuses_batches(self) -> bool:
        """Whether a batch is trained on several times, and so holds the log-probabilities it was written with."""

    @abc.abstractmethod
    def problems_of(self, batch_size: int, length: int, model: Any) -> list[str]:
        """Returns what doesn't fit a trainer's sizes and its model, one sentence each."""

    @abc.abstractmethod
    def problem_of_processes(self, count: int) -> str:
        """Returns why a run of so many processes can't write rollouts; empty where it can."""

    @abc.abstractmethod
    def prompts(self, data: DataSource.Config, batch_size: int) -> DataSource.Config:
        """Returns the source whose rows are the prompts of a batch of this size."""

    @abc.abstractmethod
    def writer(
        self, model: CausalLM, source: DataSource, environment: Environment, *,
        abstract: RolloutBatch, seed: int, params: Any, state: Any, reference: Any,
    ) -> RolloutWriter:  # fmt: skip
        """Returns what writes batches like `abstract`, its programs compiled; `reference` are the first parameters."""
