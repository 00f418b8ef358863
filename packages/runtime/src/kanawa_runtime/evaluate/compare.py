"""Models side by side on the same documents: differences from the first, with 95 % intervals."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.evaluate.metrics import paired_difference
from kanawa_runtime.evaluate.results import TaskResult

#: What is said beside the intervals.
METHOD = (
    "95 % intervals of the difference from the first model, paired by document: of means the normal interval of the "
    "differences, of other numbers the percentiles of 1,000 paired bootstrap draws with a fixed seed"
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """What a model has more than the first one in a metric, and the ends of its interval; None of one document."""

    task: str
    metric: str
    model: str
    value: float
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high

    def as_json(self) -> dict[str, Any]:
        """Returns its fields."""
        return dataclasses.asdict(self) | {"is_clear": self.is_clear}


def differences(results: Mapping[str, Sequence[TaskResult]]) -> list[Difference]:
    """Returns how every other model differs from the first, task by task and metric by metric.

    All have results of the same tasks, in the same order and on the same documents.
    """
    (_, first), *others = results.items()
    found = []
    for index, task in enumerate(first):
        for metric, score in task.scores.items():
            for model, theirs in others:
                other = theirs[index].scores[metric]
                apart = paired_difference(score.values, other.values, score.aggregation)
                found.append(Difference(task.task, metric, model, *apart))
    return found
