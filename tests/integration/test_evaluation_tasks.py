"""Tasks on a small random model: lm-eval's own numbers, several models compared, what is said of wrong files."""

import json

import kanawa as kn
import numpy as np
import pytest
from evaluation import lm_eval_fixture
from kanawa.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("evaluation")
    lm_eval_fixture.write_model(place / "model")
    lm_eval_fixture.write_model(place / "other", scale=0.3)
    lm_eval_fixture.write_tasks(place / "tasks")
    return place


@pytest.fixture(scope="module")
def results(folder):
    files = [folder / "tasks" / f"{name}.yaml" for name in lm_eval_fixture.TASKS]
    return {result.task: result for result in kn.open(folder / "model").evaluate_tasks(files)}


@pytest.fixture(scope="module")
def theirs():
    return json.loads(lm_eval_fixture.SAMPLES.read_text())


@pytest.mark.parametrize("task", lm_eval_fixture.TASKS)
def test_every_answer_is_that_of_lm_eval(results, theirs, task):
    ours, wanted = results[task].answers, theirs["samples"][task]
    assert len(ours) == len(wanted) == 12
    for mine, other in zip(ours, wanted, strict=True):
        if isinstance(mine, str):
            assert [mine] == other
            continue
        plain = [each if isinstance(each, list) else [each, None] for each in other]
        np.testing.assert_allclose([one.logprob for one in mine], [each[0] for each in plain], rtol=0, atol=1e-4)
        assert all(each[1] in (None, one.is_greedy) for one, each in zip(mine, plain, strict=True))


@pytest.mark.parametrize("task", lm_eval_fixture.TASKS)
def test_every_metric_is_that_of_lm_eval(results, theirs, task):
    wanted = {name.removesuffix(",none"): value for name, value in theirs["results"][task].items()}
    for name, score in results[task].scores.items():
        assert score.value == pytest.approx(wanted[name], rel=1e-5)
        if score.aggregation == "mean":
            metric, _, way = name.partition(",")
            error = wanted[f"{metric}_stderr{',' + way if way else ''}"]
            assert score.standard_error == pytest.approx(error, abs=1e-9)


def test_contexts_longer_than_the_model_are_counted(results):
    # Four continuations of one context, which lm-eval cuts as well.
    assert results["choices"].truncated == 4 and results["endings"].truncated == 1 and results["texts"].truncated == 0


def test_models_are_compared_on_the_same_documents(folder, capsys, tmp_path):
    runs, samples = [str(folder / name) for name in ("model", "other")], tmp_path / "samples.jsonl"
    task = str(folder / "tasks" / "choices.yaml")
    assert main(["eval", *runs, "--tasks", task, "--limit", "6", "--samples", str(samples), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in record["runs"]] == runs
    values = [run["tasks"][0]["metrics"]["acc"]["value"] for run in record["runs"]]
    apart = next(one for one in record["differences"] if one["metric"] == "acc")
    assert apart["model"] == runs[1] and apart["value"] == pytest.approx(values[1] - values[0])
    assert apart["low"] <= apart["value"] <= apart["high"]
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == 12 and {line["model"] for line in lines} == set(runs)
    assert all(len(line["logprobs"]) == 4 for line in lines)
    for index, run in enumerate(runs):
        assert np.mean([line["metrics"]["acc"] for line in lines if line["model"] == run]) == values[index]


def test_a_table_for_a_person(folder, capsys):
    task = str(folder / "tasks" / "shots.yaml")
    assert main(["eval", str(folder / "model"), str(folder / "other"), "--tasks", task, "--limit", "4"]) == 0
    said = capsys.readouterr()
    assert "higher is better" in said.out and "paired by document" in said.out and "acc_norm" in said.out
    assert "oldest tokens were cut off" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "nothing.yaml"], "nothing.yaml: No such file or directory; give the path of a task file"),
        (["--limit", "3"], "--limit is for tasks; add --tasks FILE.yaml"),
        (["--tasks", "TASK", "--data", "copying"], "--tasks and --data exclude each other"),
        (["--tasks", "TASK", "--limit", "0"], "--limit is 0, expected at least 1"),
        (["--tasks", "TASK", "TASK"], "two tasks are called 'choices'"),
        (["--tasks", "TASK", "--samples", "no/such/file"], "expected a file in a folder that is there"),
    ],
)
def test_wrong_arguments(folder, capsys, arguments, said):
    task = str(folder / "tasks" / "choices.yaml")
    given = [task if argument == "TASK" else argument for argument in arguments]
    assert main(["eval", str(folder / "model"), *given]) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_is_not_there_or_named_twice_is_said_before_the_first_is_evaluated(folder, capsys):
    first, task = str(folder / "model"), str(folder / "tasks" / "choices.yaml")
    for other, said in (("nowhere", "there is no run"), ("tasks", "tasks is not a run"), ("model/.", "is named twice")):
        assert main(["eval", first, str(folder / other) if other != "model/." else f"{first}/", "--tasks", task]) == 2
        captured = capsys.readouterr()
        assert said in captured.err and "evaluating" not in captured.err


def test_data_without_a_split_are_not_advised_one(tmp_path, capsys):
    kn.train("tiny-lm", data="copying:letters=9", steps=1, run=tmp_path / "run", set={"batch_size": 8})
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "no held-out split" in said and "data.split" not in said and "--tasks FILE.yaml" in said
