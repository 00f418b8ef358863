"""lm-eval itself with our model in its process: `nox -s lm_eval` installs it, and runs these."""

import json

import numpy as np
import pytest
from evaluation import lm_eval_fixture

lm_eval = pytest.importorskip("lm_eval", reason="nox -s lm_eval has it")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    from kanawa_runtime.evaluate.lm_eval_model import KanawaLM
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("lm-eval")
    lm_eval_fixture.write_model(folder / "model")
    lm_eval_fixture.write_tasks(folder / "tasks")
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    model = KanawaLM(str(folder / "model"))
    return lm_eval.simple_evaluate(
        model, tasks=list(lm_eval_fixture.TASKS), task_manager=manager, log_samples=True, bootstrap_iters=0
    )


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("task", lm_eval_fixture.TASKS)
def test_lm_eval_finds_what_it_finds_with_its_own_backend(found, task):
    theirs = json.loads(lm_eval_fixture.SAMPLES.read_text())
    samples = {sample["doc_id"]: sample["resps"] for sample in found["samples"][task]}
    for index, wanted in enumerate(theirs["samples"][task]):
        for mine, other in zip((response[0] for response in samples[index]), wanted, strict=True):
            if isinstance(other, str):
                assert mine == other
                continue
            numbers = [[x[0] if isinstance(x, (list, tuple)) else x] for x in (mine, other)]
            np.testing.assert_allclose(*numbers, rtol=0, atol=1e-4)
    for name, value in theirs["results"][task].items():
        if "stderr" not in name:
            assert found["results"][task][name] == pytest.approx(value, rel=1e-5)
