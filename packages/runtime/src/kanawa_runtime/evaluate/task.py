"""What a task is: documents, templates that make requests of them, and how answers are scored."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kanawa.errors import UsageError

from kanawa_runtime.data.records.record import Records

OutputType = Literal["multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"]


class TaskError(UsageError):
    """A task file, or a document of its data, is wrong; the message names file, place and what would be valid."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """One entry of `metric_list`: its name in results, and its options; `aggregation` None is the metric's own."""

    name: str
    aggregation: str | None = None
    higher_is_better: bool = True
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilterChain:
    """One entry of `filter_list`: functions applied to an answer in order, each with its options."""

    name: str
    steps: tuple[tuple[str, Mapping[str, Any]], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """How answers are drawn; `until` are texts that end one, and belong to none. `temperature` 0 is greedy."""

    until: tuple[str, ...]
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shots:
    """Solved examples before each question; `records` are those to choose from, or `samples` as they stand in the file.

    `excludes_own` leaves out the document that is asked about: the examples come from the evaluated documents.
    """

    count: int = 0
    seed: int = 1234
    first: bool = False
    records: Records | None = None
    samples: tuple[Mapping[str, Any], ...] | None = None
    excludes_own: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task as its file describes it; templates are Jinja, or the name of a field."""

    name: str
    file: Path
    output_type: OutputType
    documents: Records
    doc_to_text: str | int
    doc_to_target: str | int | list[Any]
    doc_to_choice: str | list[str] | dict[str, str] | None
    metrics: tuple[TaskMetric, ...]
    filters: tuple[FilterChain, ...]
    generation: Generation | None
    shots: Shots
    description: str = ""
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    gen_prefix: str | None = None
    #: Documents to take at most, the first ones; None is all.
    limit: int | None = None
