"""Transcribes windows of sound for many requests at once."""

import dataclasses
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np
from kanawa.contracts import Transcribes, Transcripts, Writing
from kanawa.errors import UsageError
from kanawa.module import functional

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.batching import BatchingEngine
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.request import EngineLimits, RequestError

#: Rows of a program beside one: an encoder of thirty seconds has a thousand tokens a row.
_MOST_ROWS = 8
#: Windows of a model that takes rows of any length, in seconds; shorter ones are padded to one of few lengths.
_SECONDS = 30
#: Ids a second of sound that such a model may write.
_IDS_A_SECOND = 40


@dataclasses.dataclass(frozen=True)
class Rules:
    """Which ids have what meaning to a model, bool [vocabulary]; see `Writing`. `first_time` -1: it writes no times."""

    choices: np.ndarray
    allowed: np.ndarray
    allowed_first: np.ndarray
    first_time: int = -1
    last_begin: int = 50


class Window(NamedTuple):
    """Sound of one row, fp32 at the engine's rate, and how its transcript is written."""

    samples: np.ndarray
    prompt_ids: tuple[int, ...] = ()
    timed: bool = False
    temperature: float = 0.0
    seed: int = 0


class Written(NamedTuple):
    """A window's ids, its prompt with the choices that were made, and the sum of log-probabilities or None."""

    ids: list[int]
    prompt_ids: list[int]
    log_prob: float | None


class TranscribingEngine(BatchingEngine[Window, Written]):
    """An `Engine`: `transcribe` returns what is said in a window. What a row's text is depends on no other row."""

    def __init__(self, opened: OpenedRun, config: EngineConfig, rules: Rules) -> None:
        """Takes an opened model; raises UsageError for one that transcribes nothing."""
        model: Any = opened.trainer.model
        if not isinstance(model, Transcribes):
            message = f"{opened.directory}: {type(model).__qualname__} transcribes no speech"
            raise UsageError(message)
        self.hearing, self.rules = type(model).hearing_of(model.config), rules
        self.most_samples = self.hearing.row_samples or _SECONDS * self.hearing.sample_rate
        self._model, self._environment = model, opened.environment
        self._program = jax.jit(self._transcribed, static_argnames="most")
        limits = EngineLimits(
            max_sequences=min(_MOST_ROWS, config.max_sequences),
            max_length=self.most_samples,
            max_queued=config.max_queued,
            vocab_size=model.config.vocab_size,
            max_logprobs=0,
        )
        super().__init__(limits, opened.params, opened.state)

    def transcribe(self, window: Window, client: str = "") -> "Future[Written]":
        """Returns the future transcript; raises QueueFullError, and RequestError for a window or prompt too long."""
        if not 0 < len(window.samples) <= self.most_samples:
            message = f"a window has {len(window.samples):,} samples, expected 1 to {self.most_samples:,}"
            raise RequestError(message, "file")
        if len(window.prompt_ids) > self.hearing.prompt_ids:
            message = f"the prompt has {len(window.prompt_ids)} ids, expected at most {self.hearing.prompt_ids}"
            raise RequestError(message, "prompt")
        return self.queue(window, next(size for size in self._buckets() if len(window.samples) <= size), client)

    def compile_all(self) -> None:
        """Compiles the programs of all lengths."""
        silent = Window(np.zeros(1, np.float32), self.hearing.start_ids)
        for bucket in self._buckets():
            for rows in {1, self._limits.max_sequences}:
                self.answer([silent] * rows, bucket)

    def answer(self, items: list[Window], bucket: int) -> list[Written]:
        """Returns what is said in windows."""
        rows = 1 if len(items) == 1 else self._limits.max_sequences
        audio, lengths = np.zeros((rows, bucket), np.float32), np.zeros(rows, np.int32)
        for row, item in enumerate(items):
            audio[row, : len(item.samples)], lengths[row] = item.samples, len(item.samples)
        most = self.hearing.written_ids or max(1, bucket * _IDS_A_SECOND // self.hearing.sample_rate)
        with self._environment.active():
            made = self._program(self._params, self._state, audio, lengths, self._writing(items, rows), most=most)
        ids, prompts, sums = (None if part is None else np.asarray(part) for part in made)
        assert ids is not None
        return [
            Written(
                ids[row][ids[row] >= 0].tolist(),
                [] if prompts is None else prompts[row, : len(item.prompt_ids)].tolist(),
                None if sums is None else float(sums[row]),
            )
            for row, item in enumerate(items)
        ]

    def _writing(self, items: list[Window], rows: int) -> Writing | None:
        if not self.hearing.prompt_ids:
            return None
        # Rows without sound end at once: they are read as those of the first item, whatever they say.
        items = items + [items[0]] * (rows - len(items))
        prompts = np.zeros((rows, self.hearing.prompt_ids), np.int32)
        for row, item in enumerate(items):
            prompts[row, : len(item.prompt_ids)] = item.prompt_ids
        rules = self.rules
        made: dict[str, Any] = {
            "prompt_ids": prompts,
            "prompt_lengths": np.array([len(item.prompt_ids) for item in items], np.int32),
            "choices": rules.choices,
            "allowed": rules.allowed,
            "allowed_first": rules.allowed_first,
            "first_time": np.array([rules.first_time if item.timed else -1 for item in items], np.int32),
            "last_begin": np.int32(rules.last_begin),
            "temperature": np.array([item.temperature for item in items], np.float32),
            "seed": np.array([item.seed % 2**32 for item in items], np.uint32),
        }
        return Writing(**made)

    def _transcribed(
        self, params: Any, state: Any, audio: jax.Array, lengths: jax.Array, writing: Writing | None, most: int
    ) -> Transcripts:
        made: Transcripts = functional(self._model, "transcribe")(params, state, audio, lengths, most, writing)[0]
        return made

    def _buckets(self) -> list[int]:
        if self.hearing.row_samples is not None:
            return [self.most_samples]
        sizes, size = [], 2 * self.hearing.sample_rate
        while size < self.most_samples:
            sizes.append(size)
            size *= 4
        return [*sizes, self.most_samples]
