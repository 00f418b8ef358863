"""Tasks on one model: documents are read and encoded once, then scored with any parameters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kanawa.contracts import CausalLM, Environment
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.evaluate.answers import AnswerWriter
from kanawa_runtime.evaluate.encoding import RequestEncoder, Scored
from kanawa_runtime.evaluate.filters import filtered
from kanawa_runtime.evaluate.items import Item, items_of
from kanawa_runtime.evaluate.likelihood import LikelihoodScorer
from kanawa_runtime.evaluate.metrics import Likelihood, Value, likelihood_values, text_values
from kanawa_runtime.evaluate.results import TaskResult, result_of
from kanawa_runtime.evaluate.score_plan import ScoreBatch
from kanawa_runtime.evaluate.task import Task, TaskError


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A task's documents as ids: `owners` say which document and request a scored piece belongs to."""

    task: Task
    items: tuple[Item, ...]
    truncated: int
    owners: tuple[tuple[int, int], ...] = ()
    batches: tuple[ScoreBatch, ...] = ()
    prompts: tuple[tuple[int, ...], ...] = ()


class TaskEvaluator:
    """Evaluates tasks with one model whose parameters may change; `max_length` are the tokens that the model takes.

    Everything is read and checked when it is made. A `scorer` of the same model has its programs compiled already.
    Raises TaskError, CorpusError for documents that don't fit, and UsageError for a model that continues no text.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        model: Any,
        tokenizer: Any,
        environment: Environment,
        *,
        max_length: int,
        multiple: int = 1,
        scorer: LikelihoodScorer | None = None,
    ) -> None:
        if not isinstance(model, CausalLM):
            message = f"{type(model).__qualname__} continues no text, and tasks need that: only CausalLMs do"
            raise UsageError(message)
        if not isinstance(tokenizer, Tokenizer):
            message = "tasks are texts, and this model has no tokenizer to read them with; put its tokenizer.json there"
            raise UsageError(message)
        names = [task.name for task in tasks]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            message = f"two tasks are called {twice!r}; give each a name of its own, under task:"
            raise TaskError(message)
        self._scorer = scorer or LikelihoodScorer(model, environment, multiple=multiple)
        self._prepared = [self._prepare(task, RequestEncoder(tokenizer, max_length)) for task in tasks]
        longest = [
            max(map(len, one.prompts)) + one.task.generation.max_tokens
            for one in self._prepared
            if one.task.generation is not None
        ]
        self._writer = AnswerWriter(model, tokenizer, environment, max(longest)) if longest else None

    @property
    def truncated(self) -> dict[str, int]:
        """How many requests of each task are longer than the model takes, where there are any."""
        return {one.task.name: one.truncated for one in self._prepared if one.truncated}

    def evaluate(self, params: Any, state: Any, until: Callable[[], bool] = lambda: False) -> list[TaskResult] | None:
        """Returns the result of each task; None where `until()` cut it short."""
        results = []
        for prepared in self._prepared:
            answers = self._answers(prepared, params, state, until)
            if answers is None:
                return None
            values = _values(prepared, answers)
            results.append(result_of(prepared.task, prepared.items, answers, values, prepared.truncated))
        return results

    def close(self) -> None:
        """Ends the engine that writes answers."""
        if self._writer is not None:
            self._writer.close()

    def _prepare(self, task: Task, encoder: RequestEncoder) -> _Prepared:
        items = tuple(items_of(task))
        if task.generation is not None:
            most = task.generation.max_tokens
            prompts = tuple(encoder.prompt(item.requests[0][0], most, item.name) for item in items)
            return _Prepared(task, items, encoder.truncated, prompts=prompts)
        pieces: list[Scored] = []
        owners: list[tuple[int, int]] = []
        for index, item in enumerate(items):
            for request, (context, continuation) in enumerate(item.requests):
                new = (
                    encoder.whole(continuation) if item.is_rolling else [encoder.pair(context, continuation, item.name)]
                )
                pieces += new
                owners += [(index, request)] * len(new)
        batches = tuple(self._scorer.batches(pieces))
        return _Prepared(task, items, encoder.truncated, tuple(owners), batches)

    def _answers(
        self, prepared: _Prepared, params: Any, state: Any, until: Callable[[], bool]
    ) -> list[tuple[Likelihood, ...] | str] | None:
        task = prepared.task
        if task.generation is not None and self._writer is not None:
            texts = self._writer.write(params, state, prepared.prompts, task.generation, task.shots.seed, until)
            return None if texts is None else list(texts)
        scored = self._scorer.score(params, state, prepared.batches, len(prepared.owners), until)
        if scored is None:
            return None
        totals = [[Likelihood(0.0, True)] * len(item.requests) for item in prepared.items]
        for (index, request), one in zip(prepared.owners, scored, strict=True):
            so_far = totals[index][request]
            totals[index][request] = Likelihood(so_far.logprob + one.logprob, so_far.is_greedy and one.is_greedy)
        return [tuple(each) for each in totals]


def _values(prepared: _Prepared, answers: Sequence[tuple[Likelihood, ...] | str]) -> dict[str, list[Value]]:
    """Returns the documents' values by metric; of written answers by metric and filter where there are filters."""
    task = prepared.task
    found: dict[str, list[Value]] = {}
    for item, answer in zip(prepared.items, answers, strict=True):
        if isinstance(answer, str):
            ways = {f",{chain.name}": filtered(chain, answer) for chain in task.filters} or {"": answer}
            named = {
                f"{metric}{way}": value
                for way, text in ways.items()
                for metric, value in text_values(task.metrics, item, text).items()
            }
        else:
            named = likelihood_values(task.metrics, item, answer)
        for name, value in named.items():
            found.setdefault(name, []).append(value)
    return found
