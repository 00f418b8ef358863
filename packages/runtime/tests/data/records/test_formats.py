"""Every format yields the same records; what is damaged, half written or of another schema is named with its place."""

import csv
import gzip
import json
import logging
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.formats import read_rows
from kanawa_runtime.data.text_files import RecordTexts, TextFiles

ROWS = [{"text": f"document {i}, über\n“{i}”", "n": str(i)} for i in range(700)]
SAVED = Path(__file__).parent / "saved_dataset"


def write(path: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    """Writes rows in the format of the path's suffix, by the format's own library."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    suffix = Path(name).suffix
    table = pa.Table.from_pylist(rows)
    plain = path.with_name(name)
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, plain, row_group_size=300)
    elif suffix == ".feather":
        pyarrow.feather.write_feather(table, plain, compression="uncompressed")
    elif suffix == ".arrow":
        with pa.ipc.new_stream(plain, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    elif suffix in (".csv", ".tsv"):
        with plain.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "n"], delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif suffix == ".array_record":
        module = pytest.importorskip("array_record.python.array_record_module")
        writer = module.ArrayRecordWriter(str(plain), "group_size:1")
        for row in rows:
            writer.write(json.dumps(row).encode())
        writer.close()
    else:
        plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if path != plain:
        squeezed = gzip.compress if path.suffix == ".gz" else zstandard.ZstdCompressor().compress
        data = plain.read_bytes()
        # Two members or frames, as `cat` makes them of two files.
        path.write_bytes(squeezed(data[:1000]) + squeezed(data[1000:]))
        plain.unlink()
    return path


FORMATS = ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow", "a.feather", "a.array_record"]
COMPRESSED = ["a.jsonl.gz", "a.ndjson.zst", "a.csv.zst", "a.arrow.zst"]


def texts(root: Path | str, *files: str, **fields: object) -> RecordTexts:
    return RecordTexts.Config(files=files, root=str(root), validation_one_in=0, **fields).build()


@pytest.mark.parametrize("name", FORMATS + COMPRESSED)
def test_every_format_yields_the_same_records(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    records = list(RecordFiles.Config(files=(name,), root=str(tmp_path)).build().read())
    assert [dict(record.fields) for record in records] == ROWS
    mark = ":" if "jsonl" in name or "ndjson" in name or "sv" in name else "#"
    assert [record.name for record in records] == [f"{name}{mark}{i + 1}" for i in range(len(ROWS))]
    assert [d.data.decode() for d in texts(tmp_path, name).documents("train")] == [row["text"] for row in ROWS]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.jsonl.zst", "a.feather"])
def test_an_address_is_read_like_a_path(tmp_path: Path, name: str) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    for place in (f"x/y/{name}", f"x/.hidden/{name}"):
        memory.pipe(f"{root}/{place}", write(tmp_path / name).read_bytes())
    for pattern in ("**/a.*", "x", f"x/y/{name}", f"memory:/{root}/x/y/*"):
        corpus = texts(f"memory:/{root}", pattern)
        assert [found.name for found in corpus.found()] == [f"x/y/{name}"], pattern
    assert [d.data.decode() for d in corpus.documents("train")] == [row["text"] for row in ROWS]
    with pytest.raises(CorpusError, match=r"no file matches 'memory://.*/x/\*\.txt'; memory://.*/x holds 1 files"):
        texts(f"memory:/{root}", "x/*.txt").found()
    with pytest.raises(CorpusError, match="fsspec knows no file system for nosuch://"):
        texts(".", "nosuch://bucket/a.jsonl").found()


def test_a_saved_dataset() -> None:
    train = [d.data.decode() for d in texts(SAVED, ".").documents("train")]
    assert train == [f"train {i}" for i in range(5, -1, -1)]
    assert [d.data for d in texts(SAVED, ".", dataset_split="test").documents("train")] == [b"test 1", b"test 0"]
    assert len(list(texts(SAVED.parent, "saved_dataset/train").documents("train"))) == 6
    with pytest.raises(CorpusError, match=r"saved_dataset holds no split 'tset'; did you mean 'test'\?"):
        texts(SAVED, ".", dataset_split="tset").found()


def test_a_saved_dataset_that_lost_a_file(tmp_path: Path) -> None:
    for file in (SAVED / "train").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "cache-123.arrow").write_bytes(b"not part of it")
    assert [found.name for found in texts(tmp_path, ".").found()] == [f"data-0000{i}-of-00002.arrow" for i in (0, 1)]
    (tmp_path / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(CorpusError, match=r"state\.json lists data-00001-of-00002\.arrow, which isn't there"):
        texts(tmp_path, ".").found()


def test_examples_of_tensorflow(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    # Example{features{feature{"text": bytes_list "hi"} feature{"n": int64_list [3, -1] packed} "x": float_list 0.5}}.
    text = b"\n\x0c\n\x04text\x12\x04\n\x02\n\x00hi"
    feature = {
        "text": b"\n\x04\n\x02hi",
        "n": b"\x1a\x0d\n\x0b\x03" + b"\xff" * 9 + b"\x01",
        "x": b"\x12\x06\n\x04\x00\x00\x00?",
    }
    entries = b""
    for name, message in feature.items():
        entry = b"\n" + bytes([len(name)]) + name.encode() + b"\x12" + bytes([len(message)]) + message
        entries += b"\n" + bytes([len(entry)]) + entry
    example = b"\n" + bytes([len(entries)]) + entries
    path = tmp_path / "a.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for record in (example, b"plain text", text[:5], b"\xff\xfe"):
        writer.write(record)
    writer.close()
    rows = list(read_rows(str(path)))
    assert rows[0].fields == {"text": "hi", "n": [3, -1], "x": 0.5}
    assert rows[1].fields == {"text": "plain text"}
    assert rows[3].problem.startswith("not UTF-8: byte 0xff")


@pytest.mark.parametrize("name", FORMATS[3:] + COMPRESSED)
def test_a_half_written_file_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    whole = path.read_bytes()
    for kept in (0, 1, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:kept])
        if kept == 0 and name in COMPRESSED and not name.startswith("a.arrow"):
            continue  # An empty file of lines has no rows, as an empty partition is written.
        with pytest.raises(CorpusError, match=name.replace(".", r"\.")) as error:
            list(read_rows(str(path)))
        assert "half written" in str(error.value) or "empty" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "b',
            r"a\.jsonl:2: not JSON: .*the line ends too early, as in a file that",
        ),
        ("a.jsonl", b'[\n{"text": "a"}\n]', r"a\.jsonl:1: not JSON: .*one JSON document over several lines"),
        ("a.jsonl", b'{"text": "\xe9"}\n', r"a\.jsonl:1: not UTF-8: byte 0xe9 at column 11"),
        ("a.jsonl", "x".encode("utf-16"), r"a\.jsonl isn't UTF-8 text: it begins as UTF-16 does"),
        ("a.jsonl", b'{"messages": []}\n', r"no field 'text'.* these are conversations, which --modify sft reads"),
        ("a.jsonl", b'{"prompt": "p"}\n', r"no field 'text'.* these are prompts, which --modify grpo reads"),
        ("a.csv", b"text,n\na,1\nb\n", r"a\.csv:2: 1 values for 2 columns \(line 3\): text, n"),
        ("a.csv", b'text,n\n"a\n', r"a\.csv:1: not CSV: unexpected end of data \(line 2\)"),
        ("a.csv", b"text,text\na,1\n", r"a\.csv:1: the column 'text' is there twice"),
        ("a.csv", b"text\n\xe9t\xe9\n", r"a\.csv:1: not UTF-8: byte 0xe9 at column 1 of line 2"),
        ("a.csv", b"txt\na\n", r"a\.csv:1: no field 'text'; did you mean 'txt'\?"),
        ("a.foo", b"x", r"a\.foo: no reader for \.foo; records end in \.array_record"),
    ],
)
def test_bad_content_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        texts(tmp_path, name).documents("train")


def test_schema_of_columns(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"txet": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet: no column 'text'; did you mean 'txet'\?"):
        texts(tmp_path, "a.parquet").documents("train")
    with pytest.raises(CorpusError, match=r"a\.parquet#1: field 'n' is a int, expected a string"):
        texts(tmp_path, "a.parquet", field="n").documents("train")
    pyarrow.parquet.write_table(pa.table({"messages": [["a"]]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"no column 'text'.*--modify sft"):
        texts(tmp_path, "a.parquet").documents("train")
    buffers = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    broken = pa.Table.from_arrays([pa.Array.from_buffers(pa.utf8(), 2, buffers)], ["text"])
    pyarrow.feather.write_feather(broken, tmp_path / "a.feather", compression="uncompressed")
    with pytest.raises(CorpusError, match=r"a\.feather#2: column 'text' isn't UTF-8: byte 0xff at offset 0"):
        texts(tmp_path, "a.feather").documents("train")


def test_skipped_rows_are_counted_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = [json.dumps({"text": f"good {i}"}) for i in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join([*good[:2], "{oops", '{"text": 3}', *good[2:]]))
    half = write(tmp_path / "b.jsonl.gz")
    half.write_bytes(half.read_bytes()[:-40])
    with caplog.at_level(logging.WARNING):
        corpus = texts(tmp_path, "*", on_bad="skip")
        documents = [d.data.decode() for d in corpus.documents("train")]
    assert documents[:4] == [f"good {i}" for i in range(4)]
    assert 4 < len(documents) < 4 + len(ROWS)
    assert "skipped 2 bad rows and the rest of 1 files; the first: " in caplog.text
    assert "a.jsonl:3: not JSON" in caplog.text and "a.jsonl:4: field 'text' is a int" in caplog.text
    # Known from the cache too, once the files have settled.
    lines = TextFiles.Config(files=("*.jsonl",), root=str(tmp_path), split_lines=True, on_bad="skip").build()
    assert lines.scan.skipped_rows == 0


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    words = random.Random(0)
    rows = [{"text": f"{words.getrandbits(4000):01000x}", "n": str(i)} for i in range(20_000)]
    for name in ("a.jsonl", "a.parquet", "a.csv.zst"):
        write(tmp_path / name, rows)
        tracemalloc.start()
        count = sum(1 for _ in read_rows(str(tmp_path / name)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == len(rows)
        assert peak < 8 << 20, f"{name}: {peak} bytes for a file of 20 MB"


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(CorpusError, match=r'needs the library pyarrow\.parquet: pip install "kanawa\[data\]"'):
        texts(tmp_path, "a.parquet").documents("train")
