"""What commands say of paths that are no runs: exit 2, what lies there instead, and nothing is written."""

import json
from pathlib import Path

import pytest
from kanawa.cli.main import main

VERBS = (["report"], ["eval"], ["generate", "--prompt", "a"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "events.jsonl").write_text("")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("runs/mime", "kanawa train EXPERIMENT --run runs/mime starts one; did you mean 'mine'?"),
        ("run/mine", "there is no run run/mine: run does not exist either (the working folder is "),
        ("runs/mine/events.jsonl", "events.jsonl is a file, expected a run's directory; did you mean 'runs/mine'?"),
        ("notes/todo.txt", "notes/todo.txt is a file, expected a run's directory"),
        ("runs/empty", "runs/empty is not a run: it has no events.jsonl and no config.json of ours; it is empty"),
        ("notes", "notes is not a run: it has no events.jsonl and no config.json of ours; it holds todo.txt"),
        ("runs", "runs is no run itself; it holds runs/mine"),
    ],
)
def test_no_run(verb: list[str], path: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert main([verb[0], path, *verb[1:]]) == 2
    assert message in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("verb", VERBS[1:])
def test_a_run_without_a_config_or_a_checkpoint(
    verb: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb[0], "runs/mine", *verb[1:]]) == 2
    assert "runs/mine is not a run: it has no config.json" in capsys.readouterr().err
    assert main(["show", "quickstart", "--json"]) in (0, 2)
    assert not (folder / "runs" / "mine" / "checkpoints").exists()


def test_a_report_of_a_run_that_has_only_begun(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs/mine"]) == 0
    assert (folder / "runs" / "mine" / "report.html").exists()
    capsys.readouterr()
    assert main(["report", "runs/mine", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["report"] == "runs/mine/report.html"
    assert (record["runs"][0]["step"], record["runs"][0]["outcome"]) == (0, None)


def test_a_report_needs_a_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs/mine", "--out", "notes"]) == 2
    assert "--out notes is a folder, expected a file such as notes/report.html" in capsys.readouterr().err
    assert main(["report", "runs/mine", "--out", "new/page.html"]) == 2
    assert "--out new/page.html: there is no folder new; make it first" in capsys.readouterr().err
    assert not (folder / "new").exists()
    assert main(["report", "runs/mine", "runs/mime"]) == 2
    assert not (folder / "runs" / "mine" / "report.html").exists()


@pytest.mark.parametrize("address", ["hf://me/model", "HF:/me/model", "az+http://a"])
@pytest.mark.parametrize(
    "words",
    [
        ["train", "tiny-lm", "--run", "HERE"],
        ["train", "tiny-lm", "--init-from", "HERE"],
        ["train", "HERE"],
        ["eval", "HERE"],
        ["generate", "HERE", "--prompt", "a"],
        ["report", "HERE"],
        ["report", "runs/mine", "HERE"],
    ],
)
def test_an_address_that_nobody_speaks_is_no_path(
    words: list[str], address: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert main([address if word == "HERE" else word for word in words]) == 2
    err = capsys.readouterr().err
    scheme = address.partition(":")[0].lower()
    assert f"no installed package speaks {scheme}://" in err or "is an address; expected a local file or folder" in err
    assert sorted(folder.rglob("*")) == before


def test_an_address_where_a_file_is_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert main(["report", "runs/mine", "--out", "s3://bucket/x"]) == 2
    assert "s3://bucket/x is an address; expected a local file or folder" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_data_at_an_address_that_nothing_here_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert main(["train", "tiny-lm", "--data", "nosuch://bucket/x"]) == 2
    assert "nosuch" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_an_address_without_a_bucket(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "tiny-lm", "--run", "s3:///"], ["eval", "s3://"]):
        assert main(words) == 2
        assert "names no bucket; expected s3://BUCKET/FOLDER" in capsys.readouterr().err


def test_an_address_of_a_file_is_told_its_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny-lm", "--run", "file:///data/run"]) == 2
    assert "--run file://data/run is an address; give the path itself: /data/run" in capsys.readouterr().err
    assert not (folder / "file:").exists()
