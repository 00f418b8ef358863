"""An opened run's scores on tasks."""

from collections.abc import Sequence

from kanawa_runtime.data.tokenizers.load import no_tokenizer, tokenizer_of
from kanawa_runtime.evaluate.encoding import DEFAULT_LENGTH
from kanawa_runtime.evaluate.evaluator import TaskEvaluator
from kanawa_runtime.evaluate.results import TaskResult
from kanawa_runtime.evaluate.task import Task
from kanawa_runtime.runs.open_run import OpenedRun


def task_results(opened: OpenedRun, tasks: Sequence[Task]) -> list[TaskResult]:
    """Returns the results of tasks, whose documents are read before anything is compiled.

    Raises TaskError, CorpusError for what is wrong with the documents, UsageError for a model without a tokenizer.
    """
    tokenizer = tokenizer_of(opened)
    if tokenizer is None:
        raise no_tokenizer(opened)
    mesh = opened.environment.mesh
    evaluator = TaskEvaluator(
        tasks,
        opened.trainer.model,
        tokenizer,
        opened.environment,
        max_length=opened.trained_length or DEFAULT_LENGTH,
        multiple=1 if mesh is None else mesh.size,
    )
    try:
        results = evaluator.evaluate(opened.params, opened.state)
    finally:
        evaluator.close()
    assert results is not None  # nothing cuts it short
    return results
