"""A user's own files: documents, lines, records, and messages that name the place."""

import json
from pathlib import Path

import pytest
from kanawa_runtime.data.errors import CorpusError
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
    assert corpus.documents("train") == [
        ("b.txt", "uno\n\ndué\r\n".encode()),
        ("deep/er/a.txt", b"three"),
    ]
    lines = texts(tmp_path, str(tmp_path / "b.txt"), split_lines=True).documents("train")
    assert lines == [("b.txt:1", b"uno"), ("b.txt:3", "dué".encode())]


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no file matches '\*\.txt' below"):
        texts(tmp_path, "*.txt").documents("train")
    (tmp_path / "image.txt").write_bytes(b"\x89PNG")
    with pytest.raises(CorpusError, match=r"image\.txt isn't UTF-8 text \(byte 0x89 at offset 0\)"):
        texts(tmp_path, "*.txt").documents("train")
    (tmp_path / "image.txt").write_bytes(b"ab\0c")
    with pytest.raises(CorpusError, match=r"image\.txt is binary \(it has a NUL byte at offset 2\)"):
        texts(tmp_path, "*.txt").documents("train")


def test_records(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a\nb", "n": 1}), "", json.dumps({"text": "ü"})]
    documents = records(tmp_path, *lines).documents("train")
    assert documents == [("data.jsonl:1", b"a\nb"), ("data.jsonl:3", "ü".encode())]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", r"data\.jsonl:2: not JSON: .* at column 2"),
        ("[1]", r"data\.jsonl:2: found a list, expected an object with a 'text' field"),
        ('{"txt": "a"}', r"data\.jsonl:2: no field 'text'; did you mean 'txt'\?"),
        ('{"text": 3}', r"data\.jsonl:2: field 'text' is a int, expected a string"),
    ],
)
def test_bad_record_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        records(tmp_path, '{"text": "fine"}', line).documents("train")
