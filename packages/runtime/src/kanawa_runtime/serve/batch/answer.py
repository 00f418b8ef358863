"""A file of prompts through an engine: as many requests at once as it holds, each result written as it comes."""

import dataclasses
import hashlib
import json
import queue
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kanawa.errors import KanawaError, UsageError, did_you_mean

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.batch.journal import Journal
from kanawa_runtime.serve.engine.request import (
    EngineStoppedError,
    Output,
    Request,
    RequestError,
    SamplingParams,
    TextEngine,
)
from kanawa_runtime.serve.growing_text import prompt_ids, text_after

#: What a line may say of its sampling: whole numbers, and any numbers.
_WHOLE = ("max_tokens", "min_tokens", "top_k", "seed")
_SAMPLING = (*_WHOLE, "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_FIELDS = ("id", "prompt", "prompt_ids", *_SAMPLING)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line's number (from 1), its own id, and its request."""

    number: int
    name: Any
    request: Request


def read_line(number: int, text: str, defaults: SamplingParams, tokenizer: Tokenizer | None) -> Line:
    """Returns the line; raises UsageError that says what is wrong with it.

    Without a `seed` of its own, a line uses the default's and its number: its output doesn't depend on other lines.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"no JSON: {error}"
        raise UsageError(message) from None
    if not isinstance(record, dict):
        message = f"expected an object with prompt or prompt_ids, got {type(record).__name__}"
        raise UsageError(message)
    for key in record:
        if key not in _FIELDS:
            message = f"no field {key!r}{did_you_mean(key, _FIELDS)}; there are {', '.join(_FIELDS)}"
            raise UsageError(message)
    ids = _ids(record, tokenizer)
    fields = {name: record[name] for name in _SAMPLING if record.get(name) is not None}
    for name, value in fields.items():
        if type(value) not in ((int,) if name in _WHOLE else (int, float)):
            expected = "a whole number" if name in _WHOLE else "a number"
            message = f"{name} is {value!r}, expected {expected}"
            raise UsageError(message)
    fields.setdefault("seed", (defaults.seed or 0) * 2**32 + number)
    sampling = dataclasses.replace(defaults, **fields)
    return Line(number, record.get("id"), Request(id=str(number), prompt_ids=tuple(ids), sampling=sampling))


def _ids(record: Mapping[str, Any], tokenizer: Tokenizer | None) -> list[int]:
    text, ids = record.get("prompt"), record.get("prompt_ids")
    if (text is None) == (ids is None):
        message = "expected either prompt, a text, or prompt_ids, a list of token ids"
        raise UsageError(message)
    if ids is not None:
        if not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
            message = "prompt_ids: expected a list of at least one whole number"
            raise UsageError(message)
        return ids
    if not isinstance(text, str):
        message = f"prompt is {type(text).__name__}, expected a text"
        raise UsageError(message)
    if tokenizer is None:
        message = "the run has no tokenizer, so that a prompt has to be prompt_ids, a list of token ids"
        raise UsageError(message)
    return prompt_ids(tokenizer, text)


@dataclasses.dataclass(frozen=True)
class Answers:
    """How many lines there are, how many were answered before this start, and how many have an error."""

    lines: int
    before: int
    failed: int


def answer_file(
    engine: TextEngine,
    source: Path,
    output: Path,
    *,
    defaults: SamplingParams,
    model: str,
    tokenizer: Tokenizer | None = None,
    on_progress: Callable[[int, int], None] = lambda done, lines: None,
) -> Answers:
    """Answers each line of `source` that isn't yet, and then writes `output` in its order.

    The engine has started. `model` names the weights: a file begun with others is refused. Raises UsageError where the
    output exists, and KanawaError where the engine ends; answers so far are saved.
    """
    lines, digest = _measure(source)
    subject = {"input": digest, "model": model, "sampling": _plain(defaults)}
    with Journal(output, subject) as journal:
        before = len(journal.done)
        waiting = _Waiting(engine, tokenizer)
        for number, text in _lines(source):
            if number in journal.done:
                continue
            try:
                line = read_line(number, text, defaults, tokenizer)
                while waiting.is_full:
                    journal.add(*waiting.next())
                    on_progress(len(journal.done), lines)
                waiting.submit(line)
            except EngineStoppedError as error:
                raise _ended(number) from error
            except (UsageError, RequestError) as error:
                journal.add(number, {"error": str(error)})
        while waiting.count:
            journal.add(*waiting.next())
            on_progress(len(journal.done), lines)
        journal.finish()
        return Answers(lines, before, journal.failed)


class _Waiting:
    """Running requests, and their tokens so far."""

    def __init__(self, engine: TextEngine, tokenizer: Tokenizer | None) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._lines: dict[str, tuple[Line, list[int]]] = {}
        limits = engine.limits
        # Enough that none of its slots is empty, few enough that its queue never overflows.
        self._most = limits.max_sequences + min(limits.max_sequences, max(1, limits.max_queued))

    @property
    def count(self) -> int:
        return len(self._lines)

    @property
    def is_full(self) -> bool:
        return len(self._lines) >= self._most

    def submit(self, line: Line) -> None:
        self._engine.submit(line.request, self._outputs.put)
        self._lines[line.request.id] = (line, [])

    def next(self) -> tuple[int, dict[str, Any]]:
        """Waits for the next result; returns the line's number and the result."""
        while True:
            output = self._outputs.get()
            line, ids = self._lines[output.request_id]
            ids += output.token_ids
            if output.finish_reason is None:
                continue
            del self._lines[output.request_id]
            if output.finish_reason == "abort" or (output.finish_reason == "error" and not self._engine.is_alive):
                raise _ended(line.number, output.error)
            record: dict[str, Any] = {} if line.name is None else {"id": line.name}
            if output.finish_reason == "error":
                return line.number, record | {"error": output.error or "the engine failed"}
            if self._tokenizer is not None:
                record["text"] = text_after(self._tokenizer, line.request.prompt_ids, ids)
            return line.number, record | {"token_ids": ids, "finish_reason": output.finish_reason}


def _ended(number: int, reason: str | None = None) -> KanawaError:
    why = "" if reason is None else f" ({reason})"
    return KanawaError(f"the engine was stopped at line {number}{why}; answers so far are saved, start again")


def _lines(source: Path) -> Iterator[tuple[int, str]]:
    with source.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line


def _measure(source: Path) -> tuple[int, str]:
    """Returns how many lines hold something, and the digest of the file."""
    digest, count = hashlib.sha256(), 0
    with source.open("rb") as lines:
        for line in lines:
            digest.update(line)
            count += bool(line.strip())
    return count, digest.hexdigest()


def _plain(sampling: SamplingParams) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
    return {name: getattr(sampling, name) for name in names}
