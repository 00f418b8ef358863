"""The held-out loss of an opened run."""

from kanawa.contracts import Evaluation
from kanawa.errors import UsageError

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.train.batches import check_vocabulary
from kanawa_runtime.train.evaluate import Evaluator


def evaluated(opened: OpenedRun, name: str, *, checks_vocabulary: bool, whole: bool = False) -> Evaluation:
    """Returns the evaluation on the held-out split of the opened run's data, or on the `whole` of it.

    With `--set data.split=NAME` it is that split. Raises UsageError where nothing is held out, and with
    `checks_vocabulary` where data has ids that the model hasn't.
    """
    cfg = opened.composition.config
    problem = check_vocabulary(opened.trainer.source, cfg.model) if checks_vocabulary else ""
    if problem:
        raise UsageError(problem)
    # What is named is meant: a split by --set, or files, of which all is read.
    is_split = any(change.startswith(("data.split=", "data.source.split=")) for change in opened.composition.changes)
    inner = cfg.data.source if "source" in cfg.data.fields() else cfg.data
    source = opened.trainer.source.once(inner.split if is_split else None) if is_split or whole else None
    program = opened.trainer.programs(opened.environment)["eval_step"]
    with opened.environment.active():
        scores = Evaluator(cfg, program, source=source).evaluate(opened.params, opened.state)
    if scores is None:
        # A source that has splits says so by its fields.
        by_split = ", or a split with --set data.split=train" if "split" in inner.fields() else ""
        message = (
            f"the data of {name} has no held-out split to evaluate on; name other data with --data 'mytext/**/*.txt', "
            f"or the name of an experiment{by_split}; or tasks with --tasks FILE.yaml"
        )
        raise UsageError(message)
    return Evaluation(name, opened.step, scores["loss"], scores.get("nats_per_byte"), scores)
