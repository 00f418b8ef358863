"""What a task's evaluation gives: a number and its error for each metric, and every document's part in it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError

from kanawa_runtime.evaluate.items import Item
from kanawa_runtime.evaluate.metrics import Likelihood, Value, aggregate, standard_error
from kanawa_runtime.evaluate.task import Task, TaskMetric


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of a task: `standard_error` is None of a single document, `values` are those of the documents."""

    value: float
    standard_error: float | None
    higher_is_better: bool
    aggregation: str
    values: tuple[Value, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """A task's scores by metric, "metric" or "metric,filter", in the order of its file.

    `truncated` counts the requests whose oldest tokens were cut off because the model takes no more. `answers` are a
    document's likelihoods by request, or its text.
    """

    task: str
    documents: int
    truncated: int
    scores: Mapping[str, Score]
    items: tuple[Item, ...] = dataclasses.field(repr=False)
    answers: tuple[tuple[Likelihood, ...] | str, ...] = dataclasses.field(repr=False)

    def numbers(self) -> dict[str, float]:
        """Returns {"task/metric": number}, with "task/metric_stderr" where there is one."""
        found = {}
        for name, score in self.scores.items():
            found[f"{self.task}/{name}"] = score.value
            if score.standard_error is not None:
                found[f"{self.task}/{name}_stderr"] = score.standard_error
        return found

    def as_json(self) -> dict[str, Any]:
        """Returns the object of `eval --tasks --json`."""
        metrics = {
            name: {
                "value": score.value,
                "standard_error": score.standard_error,
                "higher_is_better": score.higher_is_better,
            }
            for name, score in self.scores.items()
        }
        return {"task": self.task, "documents": self.documents, "truncated": self.truncated, "metrics": metrics}

    def records(self, model: str) -> list[dict[str, Any]]:
        """Returns one object a document: its texts, what was right, what the model answered, and its metrics."""
        return [self._record(model, index) for index in range(self.documents)]

    def _record(self, model: str, index: int) -> dict[str, Any]:
        item, answer = self.items[index], self.answers[index]
        record: dict[str, Any] = {"model": model, "task": self.task, "document": item.name}
        record["context"] = item.requests[0][0]
        if isinstance(answer, str):
            record |= {"targets": list(item.targets), "answer": answer}
        else:
            record |= {
                "continuations": [end for _, end in item.requests],
                "right": list(item.right_choices),
                "logprobs": [one.logprob for one in answer],
                "is_greedy": [one.is_greedy for one in answer],
            }
        values = {name: score.values[index] for name, score in self.scores.items()}
        return {**record, "metrics": values}


def result_of(
    task: Task,
    items: Sequence[Item],
    answers: Sequence[tuple[Likelihood, ...] | str],
    values: Mapping[str, Sequence[Value]],
    truncated: int,
) -> TaskResult:
    """Returns a task's result; `values` are the documents' by metric, "metric" or "metric,filter"."""
    metrics: dict[str, TaskMetric] = {metric.name: metric for metric in task.metrics}
    scores = {}
    for name, each in values.items():
        metric = metrics[name.partition(",")[0]]
        aggregation = metric.aggregation or "mean"
        value, error = aggregate(each, aggregation), standard_error(each, aggregation)
        scores[name] = Score(value, error, metric.higher_is_better, aggregation, tuple(each))
    return TaskResult(task.name, len(items), truncated, scores, tuple(items), tuple(answers))


def write_records(path: Path, results: Mapping[str, Sequence[TaskResult]]) -> int:
    """Writes every document of every model's tasks to a JSON Lines file; returns how many. Raises UsageError."""
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for model, each in results.items():
                for record in (one for result in each for one in result.records(model)):
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    count += 1
    except OSError as error:
        message = f"{path}: {error.strerror}; name a file in a folder that is there and can be written"
        raise UsageError(message) from error
    return count
