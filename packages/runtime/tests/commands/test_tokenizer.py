"""`kanawa tokenizer train`: the folder it writes gives the library the same ids, and what it refuses."""

import json
from pathlib import Path

import pytest
from kanawa.cli.main import main
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from tokenizers import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. Ärger über Öl 🎉\n\tdef f(x): return x + 42\n"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytext").mkdir()
    for name in "abc":
        (tmp_path / "mytext" / f"{name}.txt").write_text(f"{name} {TEXT * 30}")
    return tmp_path


def test_a_folder_that_other_libraries_read(texts, capsys):
    asked = ["tokenizer", "train", "--data", "mytext/*.txt", "--vocab-size", "320", "--out", "made", "--json"]
    assert main(asked) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["vocab_size"] == 320 and figures["bytes_per_token"] > 2
    ours, library = load_tokenizer(texts / "made"), Tokenizer.from_file(str(texts / "made" / "tokenizer.json"))
    for text in (TEXT, "other words: żółw 漢字\r\n  two", ""):
        ids = library.encode(text).ids
        assert ids == [*ours.prefix_ids, *ours.encode(text).tolist()]
        assert library.decode(ids) == text
    assert main([*asked[:-3], "--out", "again"]) == 0
    assert (texts / "again" / "tokenizer.json").read_bytes() == (texts / "made" / "tokenizer.json").read_bytes()


def test_what_it_refuses(texts, capsys):
    asked = ["tokenizer", "train", "--data", "mytext"]
    (texts / "full").mkdir()
    (texts / "full" / "file").touch()
    assert main([*asked, "--out", "full"]) == 2
    assert "full is there already: name a folder that is new or empty" in capsys.readouterr().err
    assert main([*asked, "--out", "new", "--vocab-size", "200"]) == 2
    assert "vocab_size=200 leaves no room to learn" in capsys.readouterr().err
    assert main(["tokenizer", "train", "--data", "nowhere/*.txt", "--out", "new"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["tokenizer"]) == 2
    assert "kanawa tokenizer train --data FILES" in capsys.readouterr().err
    assert not (texts / "new").exists()


def test_special_tokens_have_ids_of_their_own_after_those_learned(texts, capsys):
    """A corpus too small for all merges leaves ids unused before them."""
    asked = ["tokenizer", "train", "--data", "mytext/*.txt", "--vocab-size", "2000", "--out", "made"]
    marks = ["--special", "<|user|>", "--special", "<|stop|>"]
    assert main([*asked, *marks]) == 0
    ours, library = load_tokenizer(texts / "made"), Tokenizer.from_file(str(texts / "made" / "tokenizer.json"))
    assert library.token_to_id("<|user|>") == 1998 and ours.vocab_size == 2000
    text = "<|user|>the fox<|stop|>"
    ids = ours.encode(text).tolist()
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert (ids[0], ids[-1]) == (1998, 1999)
    assert ours.special_names[1999] == "<|stop|>" and ours.decode(ids) == "the fox"
    for name in ("<|user|>", "a", ""):
        again = [*asked[:-1], "other", *marks, "--special", name]
        assert main(again) == 2
        assert f"the special token {name!r} is empty, or a token already" in capsys.readouterr().err
    assert not (texts / "other").exists()
