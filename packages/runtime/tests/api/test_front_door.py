"""`kn.train` and `kn.open`: what comes back, resuming, other weights, text after a prompt, and what a stop does."""

import _thread
import json
import os
import signal
import threading
import time

import kanawa as kn
import pytest
from kanawa.cli.main import main
from kanawa.contracts import Evaluation, Generated
from kanawa.errors import UsageError
from kanawa_runtime.runs.events import read_events
from tiny_lm import TinyLM, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    (folder / "text").mkdir()
    for number in range(6):
        (folder / "text" / f"{number}.txt").write_text(f"What number {number} says of words.\n" * 20)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    cfg = tiny().set(model=TinyLM.Config(vocab_size=300))
    experiment = kn.experiment(cfg, set={"steps": 3, "batch_size": 8}, data=str(folder / "text"))
    return kn.train(experiment, run=folder / "run", on="cpu", progress=False)


def test_what_comes_back(run):
    assert (run.outcome.kind, run.outcome.step, run.step, len(run.losses)) == ("done", 3, 3, 3)
    assert run.losses[0] > 4.0
    kinds = [event["event"] for event in run.events]
    assert (kinds[0], kinds[-1], kinds.count("run_started")) == ("attempt_opened", "run_ended", 1)
    assert run.model.config == run.config.model
    assert set(run.params) == set(kn.param_specs(run.model))
    assert run.tokenizer.vocab_size <= 300
    opened = kn.open(run.directory)
    assert repr(opened) == repr(run) == f"kn.open({str(run.directory)!r})"
    assert (opened.outcome, opened.step, opened.losses) == (None, 3, run.losses)


def test_text_after_a_prompt_is_what_the_verb_prints(run, capsys):
    one = run.generate("What ", max_tokens=4, temperature=0.0)
    assert isinstance(one, Generated)
    assert (one.prompt, len(one.token_ids), len(one.logprobs)) == ("What ", 4, 4)
    assert str(one) == f"What {one.text}"
    words = ["generate", str(run.directory), "--prompt", "What ", "--max-tokens", "4", "--temperature", "0"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == one.as_json()
    assert main(words) == 0
    assert capsys.readouterr().out == f"{one}\n"
    ids = kn.open(run.directory).generate([[5, 6], [7]], max_tokens=2, temperature=0.0)
    assert [(one.prompt, len(one.token_ids)) for one in ids] == [([5, 6], 2), ([7], 2)]
    assert run.generate([5, 6], max_tokens=2, temperature=0.0).token_ids == ids[0].token_ids


def test_a_stream_only_grows(run):
    pieces = [piece[0] for piece in run.stream(["What "], max_tokens=5, temperature=0.0)]
    assert [len(piece.token_ids) for piece in pieces] == [1, 2, 3, 4, 5, 5]
    assert all(new.text.startswith(old.text) for old, new in zip(pieces, pieces[1:], strict=False))
    assert pieces[-1] == run.generate("What ", max_tokens=5, temperature=0.0)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [([], "expected prompts"), (["a", [1]], "all text or all token ids"), ([[9999]], "outside of the vocabulary")],
)
def test_prompts_that_can_not_be(run, prompt, said):
    with pytest.raises(UsageError, match=said):
        run.generate(prompt, max_tokens=2)


def test_evaluation_is_what_the_verb_prints(run, folder, capsys):
    scores = run.evaluate()
    assert isinstance(scores, Evaluation)
    assert (scores.step, scores.nats_per_byte > 0, scores.loss > 0) == (3, True, True)
    assert main(["eval", str(run.directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == scores.as_json()
    assert run.generate("What ", max_tokens=1).token_ids, "the checkpoint read for evaluation generates too"


def test_evaluation_of_files_reads_all_of_them(run, folder, capsys):
    held_out, whole = run.evaluate().scores, run.evaluate(data=str(folder / "text")).scores
    trained_on = kn.open(run.directory, set="data.split=train").evaluate().scores
    assert held_out["tokens"] > 0 and trained_on["tokens"] > held_out["tokens"]
    assert whole["tokens"] == held_out["tokens"] + trained_on["tokens"]
    assert whole["sequence_length"] == held_out["sequence_length"] == 16
    (folder / "one.txt").write_text("What one says of words.\n")
    tokens = len(run.tokenizer.encode("What one says of words.\n")) + 1  # the end of the document
    named = [f"one={folder / 'one.txt'}", f"all={folder / 'text'}"]
    assert main(["eval", str(run.directory), "--json", "--data", named[0], "--data", named[1]]) == 0
    both = json.loads(capsys.readouterr().out)
    assert (both["one"]["tokens"], both["all"]["tokens"]) == (tokens, whole["tokens"])
    assert main(["eval", str(run.directory), "--data", named[0], "--data", named[0]]) == 2
    assert "two sets of data are called 'one'" in capsys.readouterr().err


def test_named_sets_are_scored_while_training(folder, tmp_path):
    (folder / "one.txt").write_text("What one says of words.\n")
    cfg = tiny().set(model=TinyLM.Config(vocab_size=300), batch_size=8)
    experiment = kn.experiment(cfg, data=str(folder / "text"))
    sets = [f"one={folder / 'one.txt'}", f"all={folder / 'text'}"]
    trained = kn.train(experiment, run=tmp_path / "run", steps=2, on="cpu", eval_data=sets, progress=False)
    (record,) = [event for event in trained.events if event["event"] == "eval"]
    whole = trained.evaluate(data=str(folder / "text")).scores
    assert record["sets"]["all/loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert record["sets"]["all/tokens"] == whole["tokens"] > record["sets"]["one/tokens"] > 0
    assert record["tokens"] < whole["tokens"] and record["sequence_length"] == 16
    source = f"{tmp_path / 'run'}@2"
    branch = kn.train(experiment, run=tmp_path / "b", steps=3, branch_from=source, on="cpu", progress=False)
    assert (branch.outcome.start_step, branch.step) == (2, 3)


def test_a_report_lies_in_the_run_or_where_it_is_told(run, tmp_path):
    assert run.report() == run.directory / "report.html"
    page = run.report(run, out=tmp_path / "both.html")
    assert page.read_text().count("<html") == 1
    with pytest.raises(UsageError, match="is a folder"):
        run.report(out=tmp_path)


def test_it_resumes_in_its_own_directory_and_starts_others(run, tmp_path):
    further = kn.train(str(run.directory), steps=4, on="cpu", progress=False)
    assert (further.directory, further.outcome.start_step) == (run.directory, 3)
    assert further.losses[:3] == run.losses[:3]
    other = kn.train(run.directory, run=tmp_path / "other", on="cpu", steps=1, progress=False)
    noted = [event["path"] for event in other.events if event["event"] == "initialised_from"]
    assert noted == [str(run.directory)]


def test_what_is_no_run_is_an_error_with_near_names(run, tmp_path):
    with pytest.raises(UsageError, match="did you mean 'run'"):
        kn.open(run.directory.parent / "runn")
    with pytest.raises(UsageError, match="is not a run"):
        kn.open(tmp_path)
    with pytest.raises(UsageError, match="run='runs/mine'"):
        kn.train(tiny(), on="cpu", progress=False)


def test_a_run_without_text_has_nothing_to_say(tmp_path):
    run = kn.train(tiny(), run=tmp_path / "run", on="cpu", steps=1, progress=False)
    with pytest.raises(UsageError, match="tokenizer"):
        run.generate("a")
    assert run.generate([1], max_tokens=1).text is None


# --- in somebody else's process -----------------------------------------------------------------------------------


def test_progress_is_written_without_configuring_anything(tmp_path, capfd):
    kn.train(tiny(), run=tmp_path / "shown", on="cpu", steps=2)
    shown = capfd.readouterr()
    assert "step 2/2" in shown.err
    assert "done: 2 steps" in shown.err
    assert shown.out == "", "stdout is the script's own"
    kn.train(tiny(), run=tmp_path / "silent", on="cpu", steps=2, progress=False)
    assert "step" not in capfd.readouterr().err


def test_ctrl_c_saves_and_returns(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop = _at_step(tmp_path / "run", 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    run = kn.train(tiny(), run=tmp_path / "run", on="cpu", steps=100_000, progress=False)
    stop.join()
    assert run.outcome.kind == "stopped"
    assert 2 <= run.outcome.step < 100_000
    assert run.outcome.saved is not None
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    further = kn.train(run.directory, steps=run.outcome.step + 1, on="cpu", progress=False)
    assert (further.outcome.kind, further.outcome.start_step) == ("done", run.outcome.step)


def test_a_second_ctrl_c_is_a_keyboard_interrupt(tmp_path, monkeypatch):
    """The process is the caller's: it must not end."""
    from kanawa_runtime.train import loop

    def hang(self, step):
        """Returns never once a signal came, so that the second finds the run going on."""
        while self.signal is not None:
            time.sleep(0.01)
        return False

    monkeypatch.setattr(loop.StopSignals, "reached", hang)
    run = tmp_path / "run"

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    stop = _at_step(run, 2, twice)
    never = {"checkpoints.every_steps": 10**6}
    with pytest.raises(KeyboardInterrupt):
        kn.train(tiny(), run=run, on="cpu", steps=100_000, set=never, progress=False)
    stop.join()
    assert read_events(run / "events.jsonl")[-1]["outcome"] == "interrupted"
    assert kn.train(run, steps=1, on="cpu", progress=False).outcome.kind == "done"


def _at_step(run, step, then):
    """Calls `then` once the run's events hold a step."""

    def watch():
        for _ in range(1200):
            if (run / "events.jsonl").exists() and f'"step": {step},' in (run / "events.jsonl").read_text():
                return then()
            threading.Event().wait(0.05)
        _thread.interrupt_main()
        return None

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
