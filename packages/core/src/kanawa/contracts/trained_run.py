"""What `kn.open` and `kn.train` return: a run, or another library's folder, and what can be done with it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, overload

import numpy as np

from kanawa.config import Config
from kanawa.contracts.data import Tokenizer
from kanawa.contracts.roles import Model


class Settings(TypedDict, total=False):
    """How tokens are drawn: at most `max_tokens` (128), `temperature` (0.8; 0 is greedy), `top_k`, `top_p`, `seed`.

    Of a model that fills in: `denoising_steps` (one a token), and `block_tokens` from left to right (all at once).
    """

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    denoising_steps: int | None
    block_tokens: int | None


@dataclasses.dataclass(frozen=True)
class Generated:
    """What a model put after a prompt; attributes are the keys of `generate --json`.

    `text` is None where the prompt was token ids and the run has no tokenizer. `str()` is prompt and text.
    """

    prompt: str | list[int]
    text: str | None
    token_ids: list[int]
    logprobs: list[float]

    def as_json(self) -> dict[str, Any]:
        """Returns the object of `generate --json`."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.prompt}{self.text}" if isinstance(self.prompt, str) else str(self.text or self.token_ids)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture that a model made, uint8 [height, width, channels]; `label` is its label or text, None without."""

    pixels: np.ndarray = dataclasses.field(repr=False)
    label: str | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The held-out loss of a checkpoint. `nats_per_byte` is None for data that isn't text."""

    run: str
    step: int
    loss: float
    nats_per_byte: float | None
    #: Every figure by name, those above included.
    scores: Mapping[str, Any] = dataclasses.field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Returns the object of `eval --json`."""
        return {"run": self.run, "step": self.step, **self.scores}


class TrainedRun(abc.ABC):
    """A run or a model's folder. What reads weights does so when it is first used."""

    directory: Path | str

    @property
    @abc.abstractmethod
    def config(self) -> Config:
        """The experiment's frozen config, as it is used here: without the mesh it was trained on."""

    @property
    @abc.abstractmethod
    def model(self) -> Model:
        """The built model."""

    @property
    @abc.abstractmethod
    def params(self) -> Any:
        """The parameters of the checkpoint, as a tree that follows the model's."""

    @property
    @abc.abstractmethod
    def state(self) -> Any:
        """The model's state of the checkpoint, such as running means; an empty tree for most models."""

    @property
    @abc.abstractmethod
    def step(self) -> int:
        """Updates that the parameters have had; 0 for another library's folder."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model's training data; None where there is none to read."""

    @property
    @abc.abstractmethod
    def outcome(self) -> Any:
        """How training ended, of a run that `kn.train` returned; None of one that was opened."""

    @property
    @abc.abstractmethod
    def events(self) -> list[dict[str, Any]]:
        """The records of `events.jsonl`, of all attempts, in order."""

    @property
    @abc.abstractmethod
    def losses(self) -> list[float]:
        """The loss before each update, from the first."""

    @overload
    def generate(
        self, prompt: str | list[int], *, pictures: Sequence[Any] | None = None, **settings: Unpack[Settings]
    ) -> Generated: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        pictures: Sequence[Sequence[Any]] | None = None,
        **settings: Unpack[Settings],
    ) -> list[Generated]: ...

    @abc.abstractmethod
    def generate(
        self, prompt: Any, *, pictures: Sequence[Any] | None = None, **settings: Unpack[Settings]
    ) -> Generated | list[Generated]:
        """Returns what the model puts after a prompt, or after each of a list of prompts, decoded side by side.

        A prompt is text, or token ids. `pictures` are those that a model is asked about, before the prompt's text, or
        those of each prompt: files, bytes, or arrays uint8 [height, width, channels]. The text is then a message in the
        model's chat template, where it has one. Raises UsageError for text where there is no tokenizer, and for a
        model that generates nothing.
        """

    @abc.abstractmethod
    def stream(
        self,
        prompts: Sequence[str] | Sequence[list[int]],
        *,
        pictures: Sequence[Sequence[Any]] | None = None,
        **settings: Unpack[Settings],
    ) -> Iterator[list[Generated]]:
        """Yields what there is after each prompt, after every token; texts only grow."""

    @abc.abstractmethod
    def pictures(
        self,
        labels: Sequence[int | str] | str | None = None,
        *,
        count: int = 1,
        seed: int = 0,
        steps: int | None = None,
        guidance: float = 2.0,
        sampler: str | None = None,
    ) -> list[Picture]:
        """Returns `count` pictures of each label, all by default, or of each text, that a model makes of noise.

        The noise of picture i is that of seed + i. `steps` and `sampler` are the model's own where None; `guidance` 1
        is the model as it is. Raises UsageError for a model that makes none, and for unknown labels and samplers.
        """

    @abc.abstractmethod
    def evaluate(self, *, data: str | None = None) -> Evaluation:
        """Returns the loss on the held-out split of the run's data, or of other data; of files all is read."""

    @abc.abstractmethod
    def evaluate_tasks(self, files: Sequence[str | Path], *, limit: int | None = None) -> Sequence[Any]:
        """Returns the results of task files, in order; `limit` is the most documents of each, None all.

        A result has `task`, `scores` by metric, and `numbers()`.
        """

    @abc.abstractmethod
    def engine(self, **fields: Any) -> Any:
        """Returns a started serving engine of the model; `fields` are those of the engine's config.

        A context manager: leaving it stops the engine.
        """

    @abc.abstractmethod
    def report(self, *others: Self | str | Path, out: str | Path | None = None) -> Path | str:
        """Writes one HTML page about this run, and about others beside it; returns its path."""
