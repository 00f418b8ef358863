"""A run that is scored on tasks: its events and report, the best checkpoint by a task, tasks that are wrong."""

import json
import os
import subprocess
import sys

import kanawa as kn
import pytest
from kanawa.cli.main import main
from xla_options import xla_flags

SMALL = {
    "model.input_dim": 32,
    "model.vocab_size": 320,
    "model.stack.num_layers": 1,
    "model.stack.layer.attention.num_heads": 2,
    "model.stack.layer.attention.num_kv_heads": 2,
    "model.stack.layer.feed_forward.hidden_dim": 64,
    "data.tokenizer.vocab_size": 320,
    "data.sequence_length": 64,
    "learner.schedule.peak": 0.02,
    "learner.schedule.warmup_steps": 1,
    "evaluation.trigram_baseline": False,
    "evaluation.max_batches": 1,
    "evaluation.final_batches": 1,
    "sample_prompt": "",
    "batch_size": 8,
}
CHOICES = """task: sky
dataset_path: rows.jsonl
output_type: multiple_choice
doc_to_text: "the sky is"
doc_to_choice: ["blue", "grey"]
doc_to_target: "{{colour}}"
metric_list: [{metric: acc}]
"""
WRITTEN = """task: said
dataset_path: rows.jsonl
output_type: generate_until
doc_to_text: "the sky is"
doc_to_target: colour
generation_kwargs: {until: ["."], max_gen_toks: 8}
metric_list: [{metric: exact_match, regexes_to_ignore: ["^ "]}]
"""


ENDING = """task: ending
dataset_path: rows.csv
output_type: loglikelihood
doc_to_text: "the sky is"
doc_to_target: " {{colour}}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tasks")
    (place / "rows.jsonl").write_text('{"colour": "blue"}\n{"colour": "blue"}\n')
    (place / "rows.csv").write_text("colour,weight\nblue,1\ngrey,2\nred,3\n")
    (place / "sky.yaml").write_text(CHOICES)
    (place / "ending.yml").write_text(ENDING)
    (place / "said.yaml").write_text(WRITTEN)
    rows = [json.dumps({"text": "the sky is blue. " * (20 + n % 7)}) for n in range(200)]
    (place / "text.jsonl").write_text("\n".join(rows))
    return place


def train(folder, run, tasks, **options):
    modify = [f"evaluate:tasks={folder / tasks},every=8", *options.pop("modify", ())]
    return kn.train("quickstart", data=str(folder / "text.jsonl"), run=run, modify=modify, set=SMALL, **options)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    best = 'service:name=best-checkpoint,values={"metric": "sky/acc", "higher_is_better": true, "least_change": 0.1}'
    run = train(folder, tmp_path_factory.mktemp("runs") / "run", "*.yaml", steps=24, modify=[best])
    return run


def scores(run):
    return {record["step"]: record["tasks"] for record in run.events if record["event"] == "eval"}


def test_every_evaluation_has_the_scores(trained):
    found = scores(trained)
    assert sorted(found) == [8, 16, 24]
    assert all({"sky/acc", "sky/acc_stderr", "said/exact_match"} <= set(each) for each in found.values())
    # It has read little else.
    assert found[24]["sky/acc"] == 1.0 and found[24]["said/exact_match"] == 1.0


def test_what_was_scored_while_training_is_what_eval_says_afterwards(trained, folder):
    files = [folder / "said.yaml", folder / "sky.yaml"]
    numbers = {}
    for result in kn.open(trained.directory).evaluate_tasks(files):
        numbers |= result.numbers()
    assert numbers == scores(trained)[24]


def test_the_best_checkpoint_follows_a_task(trained):
    best = kn.open(f"{trained.directory}/best")
    found = scores(trained)
    first = next(step for step in sorted(found) if found[step]["sky/acc"] == 1.0)
    assert best.step == first


def test_the_report_has_a_curve_and_a_table(trained):
    page = trained.report().read_text()
    assert "<h2>Tasks</h2>" in page and "said/exact_match" in page and "sky/acc" in page


def test_a_run_without_held_out_data_is_scored_on_its_tasks_alone(folder, tmp_path):
    options = {**SMALL, "data.corpus.validation_one_in": 1000000}
    modify = f"evaluate:tasks={folder / 'sky.yaml'},every=2"
    data = str(folder / "text.jsonl")
    run = kn.train("quickstart", data=data, run=tmp_path / "run", modify=modify, set=options, steps=2)
    (record,) = [record for record in run.events if record["event"] == "eval"]
    assert record["tasks"].keys() == {"sky/acc", "sky/acc_stderr"}


def test_a_teacher_inside_the_loss_answers_nothing(trained, folder, tmp_path):
    files = [folder / "ending.yml", folder / "said.yaml"]
    named = ",".join(map(str, files))
    modify = [f"evaluate:tasks=[{named}],every=4", f"distill:teacher={trained.directory},mix=1"]
    run = kn.train(str(trained.directory), run=tmp_path / "run", modify=modify, steps=4, set={"services": ()})
    numbers, teachers = {}, {}
    for own, other in zip(run.evaluate_tasks(files), trained.evaluate_tasks(files), strict=True):
        numbers |= own.numbers()
        teachers |= other.numbers()
    assert scores(run)[4] == pytest.approx(numbers, rel=1e-5)
    assert numbers["ending/perplexity"] != teachers["ending/perplexity"]


def gang(folder, run, task):
    command = [sys.executable, "-m", "kanawa.cli", "launch", "local", "quickstart", "--processes=2", f"--run={run}"]
    command += ["--steps", "2", "--data", str(folder / "text.jsonl"), "--modify", f"evaluate:tasks={folder / task}"]
    command += [f"--set={path}={json.dumps(value)}" for path, value in SMALL.items()]
    return subprocess.run(command, env={**os.environ, "XLA_FLAGS": xla_flags()}, capture_output=True, text=True)


@pytest.mark.nightly
def test_every_process_of_a_gang_scores_alike_and_none_writes(folder, tmp_path):
    ended = gang(folder, tmp_path / "run", "ending.yml")
    assert ended.returncode == 0, ended.stderr
    run = kn.open(tmp_path / "run")
    (result,) = run.evaluate_tasks([folder / "ending.yml"])
    assert scores(run)[2] == pytest.approx(result.numbers(), rel=1e-5)
    refused = gang(folder, tmp_path / "other", "said.yaml")
    assert refused.returncode == 2 and "answers are written in one process, and this run has 2" in refused.stderr


def test_a_wrong_task_ends_a_run_before_its_first_step(folder, tmp_path, capsys):
    (folder / "wrong.yml").write_text(CHOICES.replace("{{colour}}", "{{color}}"))
    command = [
        "train",
        "quickstart",
        "--data",
        str(folder / "text.jsonl"),
        "--run",
        str(tmp_path / "run"),
        "--steps",
        "2",
    ]
    command += [f"--set={path}={json.dumps(value)}" for path, value in SMALL.items()]
    assert main([*command, "--modify", f"evaluate:tasks={folder / 'wrong.yml'}"]) == 2
    said = capsys.readouterr().err
    assert "rows.jsonl:1: doc_to_target" in said and "did you mean 'colour'" in said
    assert main([*command, "--modify", f"evaluate:tasks={folder / 'sk.yaml'}"]) == 2
    assert "said.yaml, sky.yaml" in capsys.readouterr().err
