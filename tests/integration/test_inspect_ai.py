"""inspect-ai itself evaluates a served model: `nox -s lm_eval` installs it, and runs this."""

import contextlib
import json
import pathlib
import subprocess
import sys

import pytest
from evaluation import lm_eval_fixture

inspect_ai = pytest.importorskip("inspect_ai", reason="nox -s lm_eval has it")

SIZES = ["max_sequences=4", "max_length=96", "prefill_tokens=32", "prefill_sizes=[32]", "batch_sizes=[4]"]


@contextlib.contextmanager
def served(folder):
    program = str(pathlib.Path(sys.executable).with_name("kanawa"))
    sizes = [f"--set=engine.{size}" for size in SIZES]
    command = [program, "serve", str(folder), "--port=0", "--json", *sizes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


@pytest.mark.filterwarnings("default")
def test_a_task_of_inspect_ai_gets_the_answers_that_the_model_writes(tmp_path, monkeypatch):
    import kanawa as kn
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig
    from inspect_ai.scorer import exact

    lm_eval_fixture.write_model(tmp_path / "small")
    questions = ["the red river", "seven old stone", "a bright blue"]
    # A folder without a template of its own: messages are a line each.
    greedy = {"max_tokens": 8, "temperature": 0.0}
    written = kn.open(tmp_path / "small").generate([f"{question}\n" for question in questions], **greedy)
    wanted = [one.text for one in written]
    samples = [Sample(input=question, target=text) for question, text in zip(questions, wanted, strict=True)]
    samples.append(Sample(input="over under", target="what it never writes"))
    with served(tmp_path / "small") as url:
        monkeypatch.setenv("KANAWA_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("KANAWA_API_KEY", "none")
        (log,) = inspect_ai.eval(
            inspect_ai.Task(dataset=samples, scorer=exact(), config=GenerateConfig(**greedy)),
            model="openai-api/kanawa/small",
            log_dir=str(tmp_path / "logs"),
            display="none",
        )
    assert log.status == "success", log.error
    answers = {sample.input: sample.output.completion for sample in log.samples}
    assert [answers[question] for question in questions] == wanted
