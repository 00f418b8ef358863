"""A file of prompts through an engine: as many requests at once as it holds, each result written as it comes."""

import dataclasses
import hashlib
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kanawa.errors import KanawaError, UsageError

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.batch.journal import Journal
from kanawa_runtime.serve.batch.lines import Line, read_line
from kanawa_runtime.serve.continuation import continued
from kanawa_runtime.serve.engine.request import Engine, EngineStoppedError, Output, RequestError, SamplingParams
from kanawa_runtime.serve.healing import HealedPrompt


@dataclasses.dataclass(frozen=True)
class Answers:
    """How many lines there are, how many were answered before this start, and how many have an error."""

    lines: int
    before: int
    failed: int


def answer_file(
    engine: Engine,
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

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None) -> None:
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
                prompt = HealedPrompt(list(line.request.prompt_ids), b"")
                record["text"] = continued(self._tokenizer, prompt, ids)
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
