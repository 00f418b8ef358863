"""Verbs wherever they are called: without a reader, a disk, a terminal, a home or a folder, and with names of bytes."""

import errno
import io
import os
import sys
from pathlib import Path

import pytest
from kanawa.cli.main import main

#: What only looks, and what takes a run, a folder or a file, as `{}`.
LOOKING = {
    "list": ["list", "models"],
    "plugins": ["plugins"],
    "doctor": ["doctor"],
    "show": ["show", "llama-tiny"],
    "show component": ["show", "models", "llama-tiny"],
    "completion": ["completion", "bash"],
    "kernels": ["kernels", "llama-tiny", "--on", "cpu-1"],
    "help": ["--help"],
}
TAKING = {
    "show": ["show", "{}"],
    "diff": ["show", "llama-tiny", "--diff", "{}"],
    "report": ["report", "{}"],
    "eval": ["eval", "{}"],
    "generate": ["generate", "{}", "--prompt", "x"],
    "serve": ["serve", "{}", "--port", "0"],
    "chat": ["chat", "{}"],
    "train": ["train", "{}", "--steps", "1"],
    "train --run": ["train", "quickstart", "--steps", "1", "--run", "{}/a/file"],
    "train --init-from": ["train", "quickstart", "--steps", "1", "--init-from", "{}"],
    "train --data": ["train", "quickstart", "--steps", "1", "--data", "{}/no/*.txt"],
    "convert from-hf": ["convert", "from-hf", "{}", "out"],
    "convert to-hf": ["convert", "to-hf", "{}", "out"],
    "plan": ["plan", "{}", "--on", "cpu-1"],
    "prices": ["plan", "llama-tiny", "--on", "cpu-1", "--prices", "{}/prices.toml"],
    "kernels": ["kernels", "{}", "--on", "cpu-1"],
    "new": ["new", "plugin", "ours", "--into", "{}/folder"],
}


class Stream(io.StringIO):
    """A stdout that fails at every write."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self.error = OSError(error, os.strerror(error))

    def write(self, text: str) -> int:
        raise self.error


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))


def told(capfd) -> str:
    text = capfd.readouterr().err
    assert "Traceback" not in text
    assert "this is a bug" not in text
    return text


@pytest.mark.parametrize("arguments", LOOKING.values(), ids=LOOKING)
def test_nobody_reads(arguments, monkeypatch, capfd):
    monkeypatch.setattr("sys.stdout", Stream(errno.EPIPE))
    assert main(arguments) == 0
    assert told(capfd) == ""


@pytest.mark.parametrize("arguments", [a for a in LOOKING.values() if a != ["--help"]])
def test_a_full_disk(arguments, monkeypatch, capfd):
    monkeypatch.setattr("sys.stdout", Stream(errno.ENOSPC))
    assert main(arguments) == 1
    assert told(capfd) == "kanawa: error: No space left on device; --traceback shows what was being done\n"


@pytest.mark.parametrize("arguments", LOOKING.values(), ids=LOOKING)
def test_no_streams_at_all(arguments, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    assert main(arguments) in (0, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.close()


@pytest.mark.parametrize("arguments", LOOKING.values(), ids=LOOKING)
def test_a_terminal_of_ascii_and_no_home(arguments, monkeypatch, capfd):
    def homeless() -> Path:
        message = "Could not determine home directory."
        raise RuntimeError(message)

    written = io.BytesIO()
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("KANAWA_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(arguments) == 0
    told(capfd)
    assert written.getvalue()


# A run in a new folder is what --run asks for: it would train.
PLACES = ["file", "x" * 300, "~nobody9", "gone", "na\udcffme"]
ASKED = [(name, place) for name in TAKING for place in (PLACES[:3] if name == "train --run" else PLACES)]


@pytest.mark.parametrize(
    ("arguments", "place"), [(TAKING[name], place) for name, place in ASKED], ids=map(ascii, ASKED)
)
def test_what_is_no_folder(arguments, place, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("text")
    monkeypatch.chdir(tmp_path)
    code = main([a.replace("{}", f"./{place}" if place != "~nobody9" else place) for a in arguments])
    text = told(capfd)
    assert (
        code == 2
        or (code == 1 and place == "file")
        or (code == 0 and arguments[0] == "new" and place in ("gone", "na\udcffme"))
    ), text
    assert code == 0 or text.startswith("kanawa: error: "), text


@pytest.mark.parametrize("arguments", [*LOOKING.values(), *TAKING.values()], ids=[*LOOKING, *TAKING])
def test_the_working_folder_has_gone(arguments, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    os.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    assert main([a.replace("{}", "run") for a in arguments]) in (0, 1, 2)
    told(capfd)
