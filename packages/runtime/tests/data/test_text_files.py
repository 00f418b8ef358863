"""A user's own files: documents, lines, records, and messages that name the place."""

import json
from pathlib import Path

import pytest
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.own_files import names_files, own_corpus
from kanawa_runtime.data.text_files import JsonLines, TextFiles


def texts(root: Path, *files: str, split_lines: bool = False) -> TextFiles:
    cfg = TextFiles.Config(files=files, root=str(root), split_lines=split_lines, validation_one_in=0)
    return cfg.build()


def records(root: Path, *lines: str, field: str = "text") -> JsonLines:
    (root / "data.jsonl").write_text("\n".join(lines) + "\n")
    return JsonLines.Config(files=("data.jsonl",), root=str(root), field=field, validation_one_in=0).build()


def test_files_and_lines(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "b.txt").write_bytes("uno\n\ndué\r\n".encode())
    (tmp_path / "deep" / "er" / "a.txt").write_text("three")
    corpus = texts(tmp_path, "**/*.txt", "b.txt")
    assert list(corpus.documents("train")) == [
        ("b.txt", "uno\n\ndué\r\n".encode()),
        ("deep/er/a.txt", b"three"),
    ]
    lines = texts(tmp_path, str(tmp_path / "b.txt"), split_lines=True).documents("train")
    assert list(lines) == [("b.txt:1", b"uno"), ("b.txt:3", "dué".encode())]


def test_an_empty_match_names_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no file matches '\*\.txt' below .*holds no files"):
        texts(tmp_path, "*.txt").documents("train")
    (tmp_path / "mytext").mkdir()
    (tmp_path / "mytext" / "notes.text").write_text("x")
    (tmp_path / "mytext" / ".hidden.txt").write_text("x")
    with pytest.raises(CorpusError, match=r"mytext holds 1 files; choices: notes\.text"):
        texts(tmp_path, "mytext/**/*.txt").documents("train")
    with pytest.raises(CorpusError, match=r"my_text is not there; did you mean 'mytext'\?"):
        texts(tmp_path, "my_text/*.txt").documents("train")
    with pytest.raises(CorpusError, match=r"notes\.text is a file, not a folder"):
        texts(tmp_path, "mytext/notes.text/*.txt").documents("train")
    with pytest.raises(CorpusError, match=r"'\[z-a\]' is no pattern"):
        texts(tmp_path, "[z-a]").documents("train")


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "image.txt").write_bytes(b"ok\n\x89PNG")
    with pytest.raises(CorpusError, match=r"image\.txt isn't UTF-8 text \(byte 0x89 at offset 3, line 2\)"):
        texts(tmp_path, "*.txt").documents("train")
    (tmp_path / "image.txt").write_bytes(b"ab\0c")
    with pytest.raises(CorpusError, match=r"image\.txt is binary \(it has a NUL byte at offset 2\)"):
        texts(tmp_path, "*.txt").documents("train")
    (tmp_path / "image.txt").write_bytes("wide".encode("utf-16"))
    with pytest.raises(CorpusError, match=r"image\.txt isn't UTF-8 text: it begins as UTF-16 does\. Convert it"):
        texts(tmp_path, "*.txt").documents("train")


def test_marks_and_empty_files_leave_no_trace(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfmarked")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(b" \n\n")
    assert list(texts(tmp_path, "*.txt").documents("train")) == [("a.txt", b"marked")]
    (tmp_path / "a.txt").unlink()
    with pytest.raises(CorpusError, match="has no text: every file is missing or empty"):
        texts(tmp_path, "*.txt").documents("train")


def test_links_are_read_once_and_may_lead_in_circles(tmp_path: Path) -> None:
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text("one")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("two")
    (tmp_path / "text" / "linked").symlink_to(tmp_path / "other")
    (tmp_path / "text" / "again.txt").symlink_to(tmp_path / "text" / "a.txt")
    for name in ("up", "deep/up"):
        (tmp_path / "text" / name).symlink_to(tmp_path / "text")
    assert [d.data for d in texts(tmp_path, "text/**/*.txt").documents("train")] == [b"one", b"two"]
    (tmp_path / "text" / "lost.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"can't read .*lost\.txt"):
        texts(tmp_path, "text/**/*.txt").documents("train")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["a.txt"]),
        ("**/*.txt", ["a.txt", "x/b.txt", "x/y/c.txt"]),
        ("x", ["x/b.txt", "x/y/c.txt", "x/y/d.md"]),
        ("x/**", ["x/b.txt", "x/y/c.txt", "x/y/d.md"]),
        ("*/?.txt", ["x/b.txt"]),
        ("**/[!a-b].*", ["x/y/c.txt", "x/y/d.md"]),
        ("**/.h*", [".h.txt"]),
        ("x/y/d.md", ["x/y/d.md"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, names: list[str]) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    for name in ("a.txt", ".h.txt", "x/b.txt", "x/y/c.txt", "x/y/d.md", "x/.git"):
        (tmp_path / name).write_text(name)
    assert [name for name, _ in texts(tmp_path, pattern).paths()] == names


def test_the_short_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "sub").mkdir(parents=True)
    (tmp_path / "mine" / "sub" / "a.txt").write_text("one")
    (tmp_path / "mine" / "b.txt").write_text("two")
    (tmp_path / "r.jsonl").write_text('{"text": "three"}\n{"text": " "}\n')
    monkeypatch.chdir(tmp_path)
    for pattern in ("mine", "mine/**/*.txt", str(tmp_path / "mine")):
        assert names_files(pattern)
        cfg = own_corpus(pattern)
        assert [name for name, _ in cfg.build().paths()] == ["b.txt", "sub/a.txt"]
    assert [d.data for d in own_corpus("r.jsonl").set(validation_one_in=0).build().documents("train")] == [b"three"]
    (tmp_path / "mine" / "r.jsonl").write_text("{}")
    with pytest.raises(CorpusError, match=r"'mine' matches both records \(mine/r\.jsonl\) and text \(mine/b\.txt\)"):
        own_corpus("mine")
    assert not names_files("qwen3-0.6b")


def test_records(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a\nb", "n": 1}), "", json.dumps({"text": "ü"})]
    documents = list(records(tmp_path, *lines).documents("train"))
    assert documents == [("data.jsonl:1", b"a\nb"), ("data.jsonl:3", "ü".encode())]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", r"data\.jsonl:2: not JSON: .* at column 2"),
        ("[1]", r"data\.jsonl:2: found a list, expected an object"),
        ('{"txt": "a"}', r"data\.jsonl:2: no field 'text'; did you mean 'txt'\?"),
        ('{"text": 3}', r"data\.jsonl:2: field 'text' is a int, expected a string"),
    ],
)
def test_bad_record_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        records(tmp_path, '{"text": "fine"}', line).documents("train")
