"""Tasks while a model trains: `--modify evaluate:tasks=words.yaml,every=100`."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kanawa as kn
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import (
    DataSource,
    Environment,
    Model,
    companions_of,
    without_companion_params,
    without_companions,
)
from kanawa.errors import ConfigError, UsageError

from kanawa_runtime.data.records.listing import matching_files
from kanawa_runtime.evaluate.evaluator import TaskEvaluator
from kanawa_runtime.evaluate.task_file import read_task
from kanawa_runtime.train.task_slot import TaskScorer, TaskSuite

logger = logging.getLogger(__name__)


class Tasks(TaskSuite):
    """The tasks of `files`, of each at most the first `limit` documents.

    Choices and texts are scored on the run's mesh, in every process alike; answers are written by an engine in the one
    process of a run.
    """

    files: tuple[str, ...] = kn.REQUIRED
    limit: kn.Size | None = None

    def scorer(
        self, model: Model, source: DataSource, environment: Environment, *, batch_size: int, processes: int
    ) -> TaskScorer:
        """Returns what scores the model; raises TaskError, CorpusError, UsageError for what is wrong with a task."""
        tasks = [read_task(file, limit=self.limit) for file in self.files]
        written = [task.name for task in tasks if task.generation is not None]
        if written and processes > 1:
            message = (
                f"{', '.join(written)}: answers are written in one process, and this run has {processes}; score tasks "
                "by likelihood while training, and these afterwards, with kanawa eval RUN --tasks"
            )
            raise UsageError(message)
        lengths = (model.trained_length(), source.config.sequence_length)
        longest = max(length for length in lengths if length is not None)
        multiple = 1 if environment.mesh is None else batch_size
        # A teacher or a reference inside the loss answers nothing.
        alone = without_companions(model.config).build() if companions_of(model) else model
        evaluator = TaskEvaluator(tasks, alone, source.tokenizer, environment, max_length=longest, multiple=multiple)
        for name, count in evaluator.truncated.items():
            why = "are longer than the model takes: their oldest tokens are cut off"
            logger.warning("%d requests of the task %s %s (%d tokens)", count, name, why, longest)
        return _Scorer(evaluator, model)


class _Scorer(TaskScorer):
    def __init__(self, evaluator: TaskEvaluator, trained: Model) -> None:
        self._evaluator, self._trained = evaluator, trained

    def scores(self, params: Any, state: Any, until: Callable[[], bool]) -> Mapping[str, float] | None:
        """Returns the numbers of all tasks; see `TaskResult.numbers`."""
        results = self._evaluator.evaluate(self._own(params), self._own(state), until)
        return None if results is None else {k: v for result in results for k, v in result.numbers().items()}

    def close(self) -> None:
        """Ends the engine."""
        self._evaluator.close()

    def _own(self, tree: Any) -> Any:
        """Returns arrays without those of the companions of the model in training."""
        return unflatten_paths(without_companion_params(flatten_paths(tree), self._trained))


def _listed(text: str) -> tuple[str, ...]:
    """Returns the parts of `[a.yaml,b.yaml]`, or one file or glob as it is."""
    is_list = text.startswith("[") and text.endswith("]")
    return tuple(part.strip() for part in text[1:-1].split(",")) if is_list else (text,)


class Evaluate(kn.Modifier):
    """Scores a run on tasks with every evaluation: `--modify 'evaluate:tasks=[words.yaml,sums.yaml],every=100'`.

    `tasks` is a file, a glob or a list of them; `every` sets `evaluation.every_steps`, and `limit` is the most
    documents of each task. Numbers are in the `eval` events under `tasks`, as "task/metric", where services that steer
    find them: `best-checkpoint` with `metric=words/acc,higher_is_better=true`.
    """

    class Config(kn.Modifier.Config):
        tasks: tuple[str, ...] | str = kn.REQUIRED
        every: kn.Size | None = None
        limit: kn.Size | None = None

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the tasks; raises ConfigError where it has no evaluation, CorpusError for no such file."""
        own = self.config
        if "evaluation" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no evaluation: only what `kanawa train` runs is scored on tasks"
            raise ConfigError(message)
        given = _listed(own.tasks) if isinstance(own.tasks, str) else own.tasks
        # Absolute, so that a run resumes from any working folder.
        files = [str(file.resolve()) for text in given for file in matching_files(Path(), text)]
        cfg.evaluation.set(tasks=Tasks(files=tuple(dict.fromkeys(files)), limit=own.limit))
        if own.every is not None:
            cfg.evaluation.set(every_steps=own.every)
        return cfg
