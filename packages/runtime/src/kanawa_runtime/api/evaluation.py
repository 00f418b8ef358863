"""The held-out loss of an opened run."""

from kanawa.contracts import Evaluation
from kanawa.errors import UsageError

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.train.batches import check_vocabulary
from kanawa_runtime.train.evaluate import Evaluator


def evaluated(opened: OpenedRun, name: str, *, checks_vocabulary: bool) -> Evaluation:
    """Returns the evaluation on the held-out split of the opened run's data.

    Raises UsageError where nothing is held out, and with `checks_vocabulary` where data has ids that the model hasn't.
    """
    cfg = opened.composition.config
    problem = check_vocabulary(opened.trainer.source, cfg.model.vocab_size) if checks_vocabulary else ""
    if problem:
        raise UsageError(problem)
    program = opened.trainer.programs(opened.environment)["eval_step"]
    with opened.environment.active():
        scores = Evaluator(cfg, program).evaluate(opened.params, opened.state)
    if scores is None:
        message = (
            f"the data of {name} has no held-out split to evaluate on; name other data: 'mytext/**/*.txt', or an "
            "experiment"
        )
        raise UsageError(message)
    return Evaluation(name, opened.step, scores["loss"], scores.get("nats_per_byte"), scores)
