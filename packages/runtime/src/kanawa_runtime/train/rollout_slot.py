"""The trainer's slot `rollouts`: what a config in it answers, and what writes the batches of a run."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

from kanawa.config import Config
from kanawa.contracts import CausalLM, DataSource, Environment, RolloutBatch, RolloutShape

#: A batch and its figures, which go into the events of its steps.
Made = tuple[RolloutBatch, dict[str, Any]]


class RolloutWriter(abc.ABC):
    """Makes a run's batches of what the model in training writes."""

    @abc.abstractmethod
    def batch(self, params: Any, state: Any, step: int, first_row: Callable[[int], int]) -> Made:
        """Returns this process's rows of the batch of the update after `step` updates, and the batch's figures.

        `first_row` gives the first row of data behind the batch after so many updates. Figures go into the step's
        event, `completions` among them into one of their own.
        """

    @abc.abstractmethod
    def evaluate(self, params: Any, state: Any) -> dict[str, Any] | None:
        """Returns the mean reward on held-out rows, for the event of an evaluation; None where there are none."""

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
    def has_old_logprobs(self) -> bool:
        """Whether a batch holds the log-probabilities it was written with: another policy than the one it trains."""

    @property
    def has_draw_keys(self) -> bool:
        """Whether batches hold the keys of their draws, so that a step computes the sampled log-probabilities."""
        return False

    @property
    def are_packed(self) -> bool:
        """Whether a step may compute several rollouts in a row."""
        return False

    @property
    def num_kept(self) -> int:
        """How many microbatches' forward passes stay in memory until their rollouts are rated."""
        return 1

    def environment(self, environment: Environment) -> Environment:
        """Returns what the programs of a run with these rollouts are compiled for."""
        return environment

    @abc.abstractmethod
    def problems_of(self, batch_size: int, length: int, model: Any) -> list[str]:
        """Returns what doesn't fit a trainer's sizes and its model, one sentence each."""

    @abc.abstractmethod
    def shape(self, batch_size: int, length: int) -> RolloutShape:
        """Returns what it draws for batches of so many rows of so many tokens."""

    @abc.abstractmethod
    def prompts(self, data: DataSource.Config, batch_size: int) -> DataSource.Config:
        """Returns the source whose rows are the prompts of a batch of this size."""

    @abc.abstractmethod
    def writer(
        self, model: CausalLM, source: DataSource, environment: Environment, *,
        abstract: RolloutBatch, seed: int, params: Any, state: Any, reference: Any, step_program: Any,
    ) -> RolloutWriter:  # fmt: skip
        """Returns what writes batches like `abstract`, its programs compiled; `reference` are the first parameters.

        `step_program` is the compiled step, a `SplitStep` where `has_draw_keys`.
        """
