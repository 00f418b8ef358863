"""Batch inference: order, faults by line, and starts that end anywhere, before a scripted engine."""

import json
import random
import subprocess
import sys

import pytest
from kanawa.cli.main import main
from kanawa.errors import KanawaError, UsageError
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.serve.batch.answer import answer_file
from kanawa_runtime.serve.batch.journal import Journal
from kanawa_runtime.serve.engine.request import EngineLimits, EngineStoppedError, Output, RequestError, SamplingParams

DEFAULTS = SamplingParams(max_tokens=4, temperature=0.0, seed=7)


class ScriptedEngine:
    """Answers the prompt's last ids, each plus one: the later of two requests first, in two pieces."""

    is_alive = True
    limits = EngineLimits(max_sequences=2, max_length=64, max_queued=2, vocab_size=300, max_logprobs=0)

    def __init__(self, end_after=None):
        self.requests, self.waiting, self.end_after = [], [], end_after

    def submit(self, request, on_output):
        if len(request.prompt_ids) > 60:
            message = f"prompt_ids has {len(request.prompt_ids)} tokens, and the engine holds 64"
            raise RequestError(message, "prompt_ids")
        self.requests.append(request)
        if self.end_after is not None and len(self.requests) > self.end_after:
            on_output(Output(request_id=request.id, finish_reason="abort"))
            return
        self.waiting.append((request, on_output))
        # A lone last request has to be answered too: every one is followed by the answer of the one before it.
        for earlier, tell in reversed(self.waiting):
            ids = [token + 1 for token in earlier.prompt_ids[-earlier.sampling.max_tokens :]]
            tell(Output(request_id=earlier.id, token_ids=tuple(ids[:1])))
            tell(Output(request_id=earlier.id, token_ids=tuple(ids[1:]), finish_reason="length"))
        self.waiting.clear()


def answered(tmp_path, engine, lines, **kwargs):
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    answers = answer_file(engine, source, tmp_path / "out.jsonl", defaults=DEFAULTS, model="m@1", **kwargs)
    return answers, [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def test_answers_are_in_order_and_faults_stay_with_their_line(tmp_path):
    engine = ScriptedEngine()
    lines = [
        {"prompt_ids": [1, 2, 3], "id": "first"},
        "{no json",
        {"prompt": "ab", "max_tokens": 2, "seed": 5},
        "",
        {"prompt_ids": [9], "temprature": 1.0},
        {"prompt_ids": list(range(61))},
        {"prompt": "x", "prompt_ids": [1]},
        {"prompt_ids": [4, 5], "max_tokens": "2"},
        {"prompt_ids": [4, 5]},
    ]
    answers, out = answered(tmp_path, engine, lines, tokenizer=ByteTokenizer.Config().build())
    assert (answers.lines, answers.before, answers.failed) == (8, 0, 5)
    assert [record["line"] for record in out] == [1, 2, 3, 5, 6, 7, 8, 9]
    assert out[0]["id"] == "first" and out[0]["token_ids"] == [2, 3, 4] and out[0]["finish_reason"] == "length"
    assert out[2]["text"] == "bc" and out[7]["token_ids"] == [5, 6]
    said = [record.get("error", "") for record in out]
    assert said[1].startswith("no JSON") and "no field 'temprature'; did you mean 'temperature'?" in said[3]
    assert "the engine holds 64" in said[4] and "either prompt, a text, or prompt_ids" in said[5]
    assert "max_tokens is '2', expected a whole number" in said[6]
    assert not (tmp_path / "out.jsonl.partial").exists()
    # A line's draws are its own: they depend on no other line.
    assert [request.sampling.seed for request in engine.requests] == [7 * 2**32 + 1, 5, 7 * 2**32 + 9]


def test_an_engine_that_dies_is_no_answer_to_the_lines_that_are_left(tmp_path):
    class Dying(ScriptedEngine):
        def submit(self, request, on_output):
            if not self.is_alive:
                message = "the engine ended with an error: no memory"
                raise EngineStoppedError(message, 1.0)
            super().submit(request, on_output)
            if request.id == "3":
                self.is_alive = False

    lines = [{"prompt_ids": [n], "id": "\ud800"} for n in range(6)]
    with pytest.raises(KanawaError, match="the engine was stopped at line 4; answers so far are saved"):
        answered(tmp_path, Dying(), lines)
    (tmp_path / "in.jsonl").unlink()
    engine = ScriptedEngine()
    answers, out = answered(tmp_path, engine, lines)
    assert answers.failed == 0 and [record["token_ids"] for record in out] == [[n + 1] for n in range(6)]
    assert out[0]["id"] == "\ud800"


def test_lines_that_an_engine_failed_at_as_it_died_are_asked_again(tmp_path):
    class Dead(ScriptedEngine):
        is_alive = False

        def submit(self, request, on_output):
            on_output(Output(request_id=request.id, finish_reason="error", error="RuntimeError: no memory"))

    with pytest.raises(KanawaError, match=r"stopped at line 1 \(RuntimeError: no memory\)"):
        answered(tmp_path, Dead(), [{"prompt_ids": [1]}, "[" * 100_000])
    answers, out = answered(tmp_path, ScriptedEngine(), [{"prompt_ids": [1]}, "[" * 100_000])
    assert answers.failed == 1 and "no JSON" in out[1]["error"]


def test_whatever_ends_it_the_next_start_goes_on(tmp_path):
    lines = [{"prompt_ids": [n % 200]} for n in range(40)]
    whole = tmp_path / "whole"
    whole.mkdir()
    _, expected = answered(whole, ScriptedEngine(), lines)
    partial, rng, asked = tmp_path / "out.jsonl.partial", random.Random(0), 0
    for _ in range(6):
        engine = ScriptedEngine(end_after=5)
        with pytest.raises(KanawaError, match="answers so far are saved, start again"):
            answered(tmp_path, engine, lines)
        asked += 5
        # A write that was cut off by the end of the process.
        with partial.open("ab") as file:
            file.write(b'{"line": 39, "token_ids": [1'[: rng.randrange(1, 28)])
    engine = ScriptedEngine()
    answers, out = answered(tmp_path, engine, lines)
    assert out == expected and answers.before == asked and len(engine.requests) == 40 - asked


def test_a_journal_survives_a_kill_after_each_result(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from kanawa_runtime.serve.batch.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]), {'model': 'm'})\n"
        "journal.add(len(journal.done) + 1, {'token_ids': [1]})\nos.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False).returncode == -9
    with Journal(tmp_path / "out", {"model": "m"}) as journal:
        assert journal.done == {1, 2, 3}
    with pytest.raises(UsageError, match="answers to another input, model or sampling"):
        Journal(tmp_path / "out", {"model": "other"})


def test_nothing_is_overwritten_and_files_are_checked(tmp_path, capsys):
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="already exists; give another --output"):
        answered(tmp_path, ScriptedEngine(), [])
    assert (tmp_path / "out.jsonl").read_text() == "mine"
    file = str(tmp_path / "in.jsonl")
    for arguments, said in (
        (["--input", file], "--input needs --output FILE"),
        (["--output", file], "--output goes with --input FILE"),
        (["--input", file, "--output", "o", "--prompt", "x"], "--input takes the place of --prompt"),
        (["--input", str(tmp_path / "no"), "--output", "o"], "--input: there is no file"),
        (["--input", file, "--output", str(tmp_path / "no" / "o")], "there is no folder"),
    ):
        assert main(["generate", str(tmp_path), *arguments]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
