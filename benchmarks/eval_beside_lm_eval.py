"""Likelihoods of a task's choices beside lm-eval's `hf` backend: one random model, the same task files.

    python benchmarks/eval_beside_lm_eval.py /path/to/an/environment/bin/python [pairs]

That environment has torch, transformers and lm-eval. Each side is a process of its own on one core; evaluations
alternate, and the ratios are medians over pairs: of processor time, which other work on the machine blurs least, and of
time. Ours counts everything from reading the task file to its scores, without compiling; lm-eval's its model's
`loglikelihood` alone, at the faster of two batch sizes. Before that the likelihoods of both are compared.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

FIXTURE = pathlib.Path(__file__).parents[1] / "tests" / "support" / "evaluation"
SIZES = {"dim": 256, "layers": 4, "heads": 4, "hidden": 704, "max_length": 512, "vocab": 8192, "scale": 0.05}
DOCUMENTS, WORDS, BATCHES = 12, (30, 90), (1, 8)
TASKS = ("choices", "shots")


def ours(folder: pathlib.Path) -> tuple[Any, dict[str, str]]:
    """Returns a function that evaluates once, and versions."""
    from importlib.metadata import version

    import kanawa as kn
    from kanawa_runtime.data.tokenizers.load import tokenizer_of
    from kanawa_runtime.evaluate.evaluator import TaskEvaluator
    from kanawa_runtime.evaluate.likelihood import LikelihoodScorer
    from kanawa_runtime.evaluate.task_file import read_task

    opened = kn.open(folder / "model").opened()
    model, tokenizer = opened.trainer.model, tokenizer_of(opened)
    # Programs outlive a task: a run compiles them at its first evaluation.
    scorer = LikelihoodScorer(model, opened.environment)

    def evaluate() -> list[list[float]]:
        tasks = [read_task(folder / "tasks" / f"{name}.yaml") for name in TASKS]
        length = SIZES["max_length"]
        evaluator = TaskEvaluator(tasks, model, tokenizer, opened.environment, max_length=length, scorer=scorer)
        results = evaluator.evaluate(opened.params, opened.state)
        return [[one.logprob for one in answer] for result in results for answer in result.answers]

    return evaluate, {name: version(name) for name in ("kanawa", "jax")}


def theirs(folder: pathlib.Path) -> tuple[Any, dict[str, str]]:
    """Returns a function that scores the same requests with lm-eval, and versions."""
    from importlib.metadata import version

    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager, get_task_dict

    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    instances = []
    tasks = get_task_dict(list(TASKS), manager)
    for task in (tasks[name] for name in TASKS):
        task.set_fewshot_seed(1234)
        task.build_all_requests(rank=0, world_size=1)
        instances.append(task.instances)
    models = [
        HFLM(pretrained=str(folder / "model"), device="cpu", dtype="float32", batch_size=size) for size in BATCHES
    ]

    def scored(model: Any) -> list[list[float]]:
        found = []
        for each in instances:
            answers = model.loglikelihood(each, disable_tqdm=True)
            found += [[logprob for logprob, _ in answers[at : at + 4]] for at in range(0, len(answers), 4)]
        return found

    def seconds(model: Any) -> float:
        began = time.perf_counter()
        scored(model)
        return time.perf_counter() - began

    fastest = min(models, key=seconds)
    names = ("lm_eval", "transformers", "torch")
    return lambda: scored(fastest), {name: version(name) for name in names} | {"batch_size": str(fastest.batch_size)}


def serve(side: str, folder: pathlib.Path) -> None:
    """Evaluates once for each line of input; answers with the seconds it took."""
    # Before any library counts the cores.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    evaluate, versions = (ours if side == "ours" else theirs)(folder)
    scores = evaluate()
    sys.stdout.write(json.dumps({"versions": versions, "scores": scores}) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        began = time.process_time(), time.perf_counter()
        evaluate()
        took = [time.process_time() - began[0], time.perf_counter() - began[1]]
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Runs both sides and prints the ratio."""
    sys.path.insert(0, str(FIXTURE))
    import lm_eval_fixture

    python, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lm_eval_fixture.write_model(folder / "model", **SIZES)
        lm_eval_fixture.write_tasks(folder / "tasks", documents=DOCUMENTS, words=WORDS)
        sides = [_started(sys.executable, "ours", folder), _started(python, "theirs", folder)]
        said = [json.loads(side.stdout.readline()) for side in sides]
        pairs_of = zip(*(sum(each["scores"], []) for each in said), strict=True)
        apart = max(abs(mine - other) for mine, other in pairs_of)
        taken = []
        for pair in range(pairs):
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            taken.append(dict(zip(order, [_asked(sides[index]) for index in order], strict=True)))
        for side in sides:
            side.stdin.close()
            side.wait()
    print("versions", said[0]["versions"], said[1]["versions"])  # noqa: T201
    print(f"{DOCUMENTS * len(TASKS)} documents of 4 choices; likelihoods are at most {apart:.1e} nats apart")  # noqa: T201
    for index, what in enumerate(("processor time", "time")):
        ratio = statistics.median(each[1][index] / each[0][index] for each in taken)
        each_side = [statistics.median(each[side][index] for each in taken) for side in (0, 1)]
        shown = f"ours {each_side[0]:.2f} s, lm-eval's {each_side[1]:.2f} s ({pairs} pairs)"
        print(f"{what}: {shown}: {ratio:.2f} times as fast")  # noqa: T201


def _started(python: str, side: str, folder: pathlib.Path) -> Any:
    command = [python, __file__, "--side", side, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _asked(side: Any) -> list[float]:
    """Returns processor seconds and seconds of one evaluation."""
    side.stdin.write("\n")
    side.stdin.flush()
    return list(json.loads(side.stdout.readline()))


if __name__ == "__main__":
    if sys.argv[1] == "--side":
        serve(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        main()
