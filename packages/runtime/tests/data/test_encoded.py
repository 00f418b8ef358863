"""Shards of encoded text: made in parallel, after a kill, while rows are read, and again where they are damaged."""

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from kanawa_runtime.data import encoded, encoding, shards
from kanawa_runtime.data.errors import CorpusError, ShardError
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import TextFiles
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

FIELDS = ("input_ids", "target_ids", "positions", "segment_ids", "loss_weights")
#: A fresh interpreter that encodes a folder in shards of 4 kB.
BUILD = """
import sys
from kanawa_runtime.data import encoding
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import TextFiles
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
encoding.SHARD_BYTES = 4096
corpus = TextFiles.Config(files=("*.txt",), root=sys.argv[1], validation_one_in=0)
source = TextSource.Config(corpus=corpus, tokenizer=ByteTokenizer.Config(), encode_processes=int(sys.argv[2]))
print(len(source.build().encoded))
"""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "SHARD_BYTES", 4096)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "text"
    root.mkdir()
    for i in range(200):
        (root / f"{i:03}.txt").write_text(f"document {i} says über and over\n" * (i % 13 + 1))
    return root


def source(folder: Path, **fields: object) -> TextSource:
    corpus = TextFiles.Config(files=("*.txt",), root=str(folder), validation_one_in=0)
    settings = {"tokenizer": ByteTokenizer.Config(), "sequence_length": 64, "window_documents": 16, "epochs": 2}
    return TextSource.Config(corpus=corpus, **{**settings, "encode_processes": 1, **fields}).build()


def rows(made: TextSource) -> np.ndarray:
    return np.stack([np.concatenate([made.row(i)[name] for name in FIELDS]) for i in range(made.num_rows or 0)])


def shard_files(cache: Path) -> list[Path]:
    return sorted((cache / "shards").glob("*/*.shard"))


def test_processes_make_what_one_makes(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = rows(source(folder))
    made = [(path.name, path.read_bytes()) for path in shard_files(cache)]
    assert len(made) > 8
    monkeypatch.setenv("KANAWA_CACHE", str(cache / "other"))
    assert (rows(source(folder, encode_processes=2)) == alone).all()
    assert [(path.name, path.read_bytes()) for path in shard_files(cache / "other")] == made


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_build_resumes_where_it_was(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    # Of encoding processes each counts for itself; one that is killed ends the build.
    environment = {**os.environ, "KANAWA_FAULT": f"in_cache_write:sigkill:{4 + (processes == 1)}"}
    command = [sys.executable, "-c", BUILD, str(folder), str(processes)]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if processes == 1:
        assert killed.returncode == -signal.SIGKILL
    else:
        assert "a process that encodes text ended with code -9" in killed.stderr
    before = {path: path.stat().st_mtime_ns for path in shard_files(cache)}
    assert before
    encoded: list[str] = []
    write = encoding.write_shard
    monkeypatch.setattr(
        encoding, "write_shard", lambda folder, key, *rest: encoded.append(key) or write(folder, key, *rest)
    )
    resumed = source(folder)
    after = shard_files(cache)
    assert len(resumed.encoded) == 200
    assert len(encoded) == len(shard_files(cache)) - len(before) > 0
    assert all(path.stat().st_mtime_ns == made for path, made in before.items()), after
    monkeypatch.setenv("KANAWA_CACHE", str(cache / "other"))
    assert (rows(resumed) == rows(source(folder))).all()


@pytest.mark.parametrize("place", [10, 300, -40, -1, None])
def test_a_damaged_shard_is_made_again(
    folder: Path, cache: Path, caplog: pytest.LogCaptureFixture, place: int | None
) -> None:
    good = rows(source(folder))
    path = shard_files(cache)[2]
    content = bytearray(path.read_bytes())
    if place is None:
        path.unlink()
    else:
        content[place] ^= 1
        path.write_bytes(content)
    assert (rows(source(folder)) == good).all()
    # Known good from then on, and damaged under a source that has looked at it.
    open_source = source(folder)
    assert len(open_source.encoded) == 200
    content[-41] ^= 1
    path.write_bytes(content)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert (rows(open_source) == good).all()
    assert f"{path} is damaged: its content isn't what its digest says: it is made again from the data" in caplog.text


def test_a_shard_whose_text_has_changed_cant_be_made_again(folder: Path, cache: Path) -> None:
    opened = source(folder)
    assert len(opened.encoded) == 200
    for path in shard_files(cache):
        path.unlink()
    (folder / "150.txt").write_text("other text\n")
    with pytest.raises(CorpusError, match="changed while it was read: start again when nothing writes to it"):
        rows(opened)


def test_a_corpus_that_grows_at_its_end_is_encoded_from_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(source(folder).encoded) == 200
    (folder / "900.txt").write_text("new\n")
    encoded: list[str] = []
    write = encoding.write_shard
    monkeypatch.setattr(
        encoding, "write_shard", lambda folder, key, *rest: encoded.append(key) or write(folder, key, *rest)
    )
    assert len(source(folder).encoded) == 201
    assert len(encoded) == 1


def test_rows_are_read_while_later_text_is_encoded(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(source(folder, shuffle_within="window"))
    monkeypatch.setenv("KANAWA_CACHE", str(cache / "other"))
    may_go_on, written = threading.Event(), []
    write = encoding.write_shard

    def held(folder: Path, key: str, *rest: object) -> object:
        if len(written) == 5:
            assert may_go_on.wait(60)
        written.append(key)
        return write(folder, key, *rest)

    monkeypatch.setattr(encoding, "write_shard", held)
    growing = source(folder, shuffle_within="window", epochs=None)
    first = np.stack([np.concatenate([growing.row(i)[name] for name in FIELDS]) for i in range(10)])
    row = growing.row(9)
    covered = growing.target_bytes(row["target_ids"], row["loss_weights"])
    assert len(written) <= 5, "the build waits, and ten rows are there, with what a step reports of them"
    assert covered == (row["target_ids"][row["loss_weights"] > 0] < 256).sum()
    may_go_on.set()
    assert (first == whole[:10]).all()
    assert (np.concatenate([growing.row(len(whole) - 1)[name] for name in FIELDS]) == whole[-1]).all()
    assert len(written) == len(shard_files(cache))


def test_what_ends_a_build_in_the_background_is_raised_by_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def disk(point: str, path: Path) -> None:
        written.append(path)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shards.faults, "reached", disk)
    growing = source(folder, shuffle_within="window", epochs=None)
    assert growing.digest
    with pytest.raises(ShardError, match=r"can't write .*No space left.*set KANAWA_CACHE to a folder"):
        growing.row(500)


def test_a_process_that_encodes_starts_without_jax() -> None:
    program = (
        "import sys, kanawa_runtime.data.encoding, kanawa_runtime.data.tokenizers.huggingface;"
        "sys.exit(','.join({'jax', 'kanawa.contracts'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_read_is_not_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = rows(source(folder))
    held = source(folder)
    released: list[Path] = []
    release = shards.Shard.release
    monkeypatch.setattr(encoded, "_MOST_MAPPED", 5)
    monkeypatch.setattr(shards.Shard, "release", lambda shard: released.append(shard.path) or release(shard))
    first = held.encoded.example(0).ids
    before = first.copy()
    assert (rows(held) == good).all()
    assert len(released) > 2 * len(held.encoded.heads), "more often than shards are checked"
    assert (first == before).all()


def test_shuffling_in_windows_sees_every_document_once_an_epoch(folder: Path) -> None:
    made = source(folder, shuffle_within="window", epochs=1)
    targets = np.concatenate([made.row(i)["target_ids"] for i in range(made.num_rows or 0)])
    spelled = sorted(made.tokenizer.decode_bytes(targets))
    assert spelled == sorted(b"".join(document.data for document in made.corpus.documents("train")))
    other = source(folder, shuffle_within="window", epochs=1, seed=1)
    assert (rows(made) != rows(other)).any() and made.digest != other.digest


def test_a_cache_that_cant_be_written_costs_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = rows(source(folder))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert (rows(source(folder)) == good).all()
    assert "can't be written" in caplog.text and "set KANAWA_CACHE to a writable folder" in caplog.text


def test_memory_doesnt_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "SHARD_BYTES", 1 << 18)
    peaks = []
    for count in (500, 4000):
        root = tmp_path / str(count)
        root.mkdir()
        (root / "a.txt").write_text("".join(f"{i} {'x' * 4000}\n" for i in range(count)))
        corpus = TextFiles.Config(files=("a.txt",), root=str(root), split_lines=True)
        cfg = TextSource.Config(corpus=corpus, tokenizer=ByteTokenizer.Config(), encode_processes=1)
        tracemalloc.start()
        made = cfg.build()
        made.row(0)
        assert made.digest
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20), f"2 MB of text took {peaks[0]} bytes, 16 MB {peaks[1]}"


@pytest.mark.parametrize(("one_in", "times"), [(0, 1), (7, 1), (100_000, 3)])
def test_the_reading_for_the_digest_encodes_on_the_way(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, one_in: int, times: int
) -> None:
    """Once in 100,000 leaves nothing held out by the hash, so one document is chosen, and the text is read again."""
    readings = []
    read = TextFiles.read
    monkeypatch.setattr(TextFiles, "read", lambda self: readings.append(self) or read(self))
    corpus = TextFiles.Config(files=("*.txt",), root=str(folder), validation_one_in=one_in)
    settings = {"tokenizer": ByteTokenizer.Config(), "sequence_length": 64, "epochs": 1, "encode_processes": 1}
    made = TextSource.Config(corpus=corpus, **settings).build()
    digest, found = made.digest, rows(made)
    assert len(readings) == times
    monkeypatch.setenv("KANAWA_CACHE", str(cache / "other"))
    again = TextSource.Config(corpus=corpus, **settings).build()
    again.encodes_early = False
    assert (again.digest, again.encoded.heads) == (digest, made.encoded.heads)
    assert (rows(again) == found).all()


def test_a_corpus_that_reads_badly_at_its_end_is_still_an_error(folder: Path) -> None:
    (folder / "zzz.txt").write_bytes(b"caf\xe9")
    with pytest.raises(CorpusError, match=r"zzz\.txt isn't UTF-8"):
        len(source(folder).encoded)
