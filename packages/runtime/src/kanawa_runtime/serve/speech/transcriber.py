"""Sound of any length to a transcript with its segments: prompts, windows, and second tries at a higher temperature.

Source: Whisper (Radford et al. 2022, arXiv:2212.04356, section 4.5, and the released tokenizers and configs).
"""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import numpy as np

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.request import RequestError
from kanawa_runtime.serve.speech.engine import Rules, TranscribingEngine, Window, Written
from kanawa_runtime.serve.speech.windows import windows

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_UNTIMED, _PREVIOUS = "<|notimestamps|>", "<|startofprev|>"
#: Seconds from one time to the next.
_TIME = 0.02
#: Where a transcript isn't likely enough, or repeats itself, the next temperature is tried.
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_LEAST_LOG_PROB, _MOST_REPEATED = -1.0, 2.4


class Segment(NamedTuple):
    """A piece of a transcript, in seconds from the sound's beginning; the log-probability is the mean of its ids."""

    start: float
    end: float
    text: str
    token_ids: list[int]
    temperature: float
    log_prob: float | None


class Asked(NamedTuple):
    """How a transcript is wanted; `language` None: the likeliest. `temperature` None: from 0 on until one will do."""

    task: str = "transcribe"
    language: str | None = None
    prompt: str = ""
    temperature: float | None = None
    timed: bool = False
    seed: int = 0


def rules_of(
    special: Mapping[int, str], files: Mapping[str, bytes], vocab_size: int, start_ids: tuple[int, ...]
) -> Rules:
    """Returns the meaning of a model's ids by the names of its special ones, and by its generation_config.json."""
    content = json.loads(files.get("generation_config.json", b"{}"))
    ids, names = np.arange(vocab_size), {name: number for number, name in special.items()}
    untimed, languages = (
        names.get(_UNTIMED, -1),
        [number for name, number in names.items() if _LANGUAGE.fullmatch(name)],
    )
    # The tokenizers of models for English alone list all languages.
    languages = languages if content.get("is_multilingual", True) else []
    listed = [content.get(name) or [] for name in ("suppress_tokens", "begin_suppress_tokens")]
    never, not_first = ([number for number in each if isinstance(number, int)] for each in listed)
    return Rules(
        choices=np.isin(ids, languages),
        allowed=~np.isin(ids, [*never, *start_ids]) if never else np.ones(vocab_size, bool),
        allowed_first=~np.isin(ids, not_first),
        first_time=untimed + 1 if 0 <= untimed < vocab_size - 1 else -1,
        last_begin=int(content.get("max_initial_timestamp_index") or 50),
    )


class Transcriber:
    """An engine with the tokenizer of its model."""

    def __init__(self, engine: TranscribingEngine, tokenizer: Tokenizer, special: Mapping[int, str]) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self._ids = {name: number for number, name in special.items()}
        self._special = special
        matches = [_LANGUAGE.fullmatch(name) for name in self._ids]
        self.languages = sorted(match[1] for match in matches if match and engine.rules.choices.any())

    def prompt_ids(self, asked: Asked) -> tuple[int, ...]:
        """Returns what the model reads first; raises RequestError for what it can't be asked."""
        hearing, ids = self.engine.hearing, self._ids
        if asked.language is not None and asked.language not in self.languages:
            known = f"expected one of {', '.join(self.languages)}" if self.languages else "this model names none"
            message = f"{asked.language[:20]!r} is no language of the model; {known}"
            raise RequestError(message, "language")
        task = ids.get(f"<|{asked.task}|>")
        if task is None and asked.task != "transcribe":
            message = f"this model can't {asked.task}; it writes what is said"
            raise RequestError(message, "model")
        if not hearing.prompt_ids:
            return ()
        start = list(hearing.start_ids)
        if self.languages:
            start.append(-1 if asked.language is None else ids[f"<|{asked.language}|>"])
            start += [] if task is None else [task]
        if not asked.timed and _UNTIMED in ids:
            start.append(ids[_UNTIMED])
        if asked.prompt and _PREVIOUS in ids:
            before = self.tokenizer.encode(f" {asked.prompt.strip()}").tolist()
            # The end of a longer prompt is what is nearest to the sound.
            start = [ids[_PREVIOUS], *before[-(hearing.prompt_ids - len(start) - 1) :], *start]
        return tuple(start)

    async def segments(self, samples: np.ndarray, asked: Asked, client: str = "") -> AsyncIterator[tuple[str, Segment]]:
        """Yields each segment in order with its language, "" where the model names none.

        Raises RequestError, and QueueFullError before the first one.
        """
        rate, prompt = self.engine.hearing.sample_rate, self.prompt_ids(asked)
        timed = asked.timed and self.engine.rules.first_time >= 0
        places = windows(samples, self.engine.most_samples, rate)
        running = [
            asyncio.ensure_future(self._written(samples[start:end], prompt, timed, asked, client))
            for start, end in places
        ]
        try:
            for (start, end), task in zip(places, running, strict=True):
                written, temperature = await task
                names = [self._special.get(number, "") for number in written.prompt_ids]
                language = next((name[2:-2] for name in names if _LANGUAGE.fullmatch(name)), "")
                for segment in self._cut(written, start / rate, end / rate, temperature, timed):
                    yield language, segment
        finally:
            for task in running:
                task.cancel()

    async def _written(
        self, samples: np.ndarray, prompt: tuple[int, ...], timed: bool, asked: Asked, client: str
    ) -> tuple[Written, float]:
        tried = _TEMPERATURES if asked.temperature is None else (asked.temperature,)
        for temperature in tried:
            window = Window(samples, prompt, timed, temperature, asked.seed)
            written = await asyncio.wrap_future(self.engine.transcribe(window, client))
            if written.log_prob is None or self._is_plausible(written):
                break
        return written, temperature

    def _is_plausible(self, written: Written) -> bool:
        assert written.log_prob is not None
        text = self._text(written.ids).encode()
        repeated = len(text) / len(zlib.compress(text))
        return written.log_prob / (len(written.ids) + 1) >= _LEAST_LOG_PROB and repeated <= _MOST_REPEATED

    def _text(self, ids: list[int]) -> str:
        first = self.engine.rules.first_time
        return self.tokenizer.decode([i for i in ids if first < 0 or i < first])

    def _cut(self, written: Written, start: float, end: float, temperature: float, timed: bool) -> list[Segment]:
        """Returns a window's segments: those between its times, or all of it."""
        mean = None if written.log_prob is None else written.log_prob / (len(written.ids) + 1)
        first, found = self.engine.rules.first_time, []
        begins, ids = start, list[int]()
        for token in written.ids:
            if timed and token >= first:
                time = min(end, start + (token - first) * _TIME)
                if ids:
                    found.append(Segment(begins, time, self._text(ids), ids, temperature, mean))
                begins, ids = time, []
            else:
                ids.append(token)
        if ids:
            found.append(Segment(begins, end, self._text(ids), ids, temperature, mean))
        return found
