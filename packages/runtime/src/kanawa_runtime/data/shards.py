"""Shards of encoded examples on disk: written once, each with digests, and mapped into memory when read.

A shard is a line of JSON, padded to 64 bytes, then the lengths (uint32), ids (uint16 or int32) and, where examples have
them, weights (float32); of records also where each one's columns end (uint32), and those. The line has digests of
the arrays, and ends the file as a digest of its own.
"""

import functools
import hashlib
import json
import logging
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kanawa_runtime import faults
from kanawa_runtime.data.errors import ShardError
from kanawa_runtime.storage.durable import partial_name

logger = logging.getLogger(__name__)

#: Part of every key and header: raise it when the layout changes.
VERSION = 2
_ALIGNMENT = 64
#: Ids whose bytes are counted in one go.
_PART_TOKENS = 1 << 20
_DIGEST_BYTES = 32
#: Bytes that are in memory at once while a digest is checked.
_CHECKED_BYTES = 1 << 22


class Example(NamedTuple):
    """One example: `ids` int32 [tokens], at least two, and the weight of each as a target.

    The first id is no target. `weights` None weighs all others 1.
    """

    ids: np.ndarray
    weights: np.ndarray | None = None


class Outcome(NamedTuple):
    """What became of `records`: some have no example, the first few of them with the reason, some lost their ends."""

    records: int = 0
    skipped: int = 0
    cut: int = 0
    reasons: tuple[str, ...] = ()


NO_RECORDS = Outcome()


class ShardHead(NamedTuple):
    """What a shard's first line says."""

    key: str
    examples: int
    tokens: int
    #: Bytes of all texts, as they were before encoding; 0 where examples aren't plain text.
    text_bytes: int
    #: Bytes that the ids stand for.
    spelled_bytes: int
    dtype: str
    weighted: bool
    lengths_digest: str
    values_digest: str
    outcome: Outcome = NO_RECORDS
    #: Of the columns that records have, with where each ends; 0 where examples are made of none.
    column_bytes: int = 0


def id_dtype(vocab_size: int) -> Any:
    """Returns the NumPy type of ids below `vocab_size`."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def shard_path(folder: Path, key: str) -> Path:
    """Returns a shard's file: folders of a few hundred files are listed faster than one of all."""
    return folder / key[:2] / f"{key}.shard"


def write_shard(
    folder: Path, key: str, examples: Sequence[Example], vocab_size: int, byte_lengths: np.ndarray, text_bytes: int = 0,
    *, outcome: Outcome = NO_RECORDS, columns: Sequence[bytes] = (),
) -> ShardHead:  # fmt: skip
    """Writes examples as one file, whole or not at all; raises ShardError where the disk refuses.

    `columns` are those of the record behind each example, in any form; none where there are no records.
    """
    dtype = np.dtype(id_dtype(vocab_size))
    ids = np.concatenate([np.zeros(0, dtype), *(example.ids for example in examples)], dtype=dtype, casting="unsafe")
    lengths = np.array([len(example.ids) for example in examples], np.uint32)
    values = [ids.tobytes()]
    weighted = any(example.weights is not None for example in examples)
    if weighted:
        weights = [np.ones(len(e.ids), np.float32) if e.weights is None else e.weights for e in examples]
        values.append(np.concatenate(weights).astype(np.float32).tobytes())
    stored = [np.cumsum([len(each) for each in columns], dtype=np.uint32).tobytes(), *columns] if columns else []
    parts = range(0, len(ids), _PART_TOKENS)
    spelled = sum(int(byte_lengths[ids[begin : begin + _PART_TOKENS]].sum(dtype=np.int64)) for begin in parts)
    values += stored
    digests = (hashlib.sha256(lengths.tobytes()).hexdigest(), hashlib.sha256(b"".join(values)).hexdigest())
    column_bytes = sum(map(len, stored))
    head = ShardHead(
        key, len(examples), len(ids), text_bytes, spelled, dtype.str, weighted, *digests, outcome, column_bytes
    )
    line = _head_line(head)
    path = shard_path(folder, key)
    beside = partial_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.writelines([line, lengths.tobytes(), *values, hashlib.sha256(line).digest()])
        faults.reached("in_cache_write", beside)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        message = (
            f"can't write {path}: {error.strerror or error}; free space there, or set KANAWA_CACHE to a folder "
            "with room for about half of the text's size"
        )
        raise ShardError(message) from error
    return head


def _head_line(head: ShardHead) -> bytes:
    fields = {**head._asdict(), "outcome": head.outcome._asdict()}
    text = json.dumps({"version": VERSION, **fields}).encode()
    return text.ljust(-(-(len(text) + 1) // _ALIGNMENT) * _ALIGNMENT - 1) + b"\n"


def read_head(folder: Path, key: str) -> ShardHead | None:
    """Returns what a finished shard's first line says; None where there is none, or it isn't whole."""
    path = shard_path(folder, key)
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 16)
            size = file.seek(0, 2)
            file.seek(-_DIGEST_BYTES, 2)
            digest = file.read()
        fields = json.loads(line)
        version = fields.pop("version")
        outcome = fields.pop("outcome")
        head = ShardHead(**fields, outcome=Outcome(**{**outcome, "reasons": tuple(outcome["reasons"])}))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = digest == hashlib.sha256(line).digest() and size == len(line) + _values_bytes(head) + _DIGEST_BYTES
    return head if whole and version == VERSION and head.key == key else None


def _values_bytes(head: ShardHead) -> int:
    return head.examples * 4 + head.tokens * (np.dtype(head.dtype).itemsize + 4 * head.weighted) + head.column_bytes


class Shard:
    """A shard's arrays, mapped from its file; they are checked against the digests when first read."""

    def __init__(self, folder: Path, head: ShardHead) -> None:
        self.head = head
        self.path = shard_path(folder, head.key)

    @functools.cached_property
    def _mapped(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            message = f"can't read {self.path}: {error}"
            raise ShardError(message) from error

    def release(self) -> None:
        """Gives back the memory of what was read; arrays stay valid, and are mapped again when they are read.

        A process would otherwise hold a whole epoch: the system takes such memory back only where it is short.
        """
        if hasattr(mmap, "MADV_DONTNEED") and "_mapped" in vars(self):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    @functools.cached_property
    def _bytes(self) -> memoryview:
        mapped = self._mapped
        line = len(_head_line(self.head))
        if len(mapped) != line + _values_bytes(self.head) + _DIGEST_BYTES:
            message = f"{self.path} has {len(mapped)} bytes, and isn't the shard that the index names"
            raise ShardError(message)
        return memoryview(mapped)[line:-_DIGEST_BYTES]

    def _checked(self, part: memoryview, digest: str) -> memoryview:
        hasher = hashlib.sha256()
        for begin in range(0, len(part), _CHECKED_BYTES):
            hasher.update(part[begin : begin + _CHECKED_BYTES])
            self.release()
        if hasher.hexdigest() != digest:
            message = f"{self.path} is damaged: its content isn't what its digest says"
            raise ShardError(message)
        return part

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, uint32 [examples]; raises ShardError for a damaged file."""
        part = self._checked(self._bytes[: self.head.examples * 4], self.head.lengths_digest)
        return np.frombuffer(part, np.uint32)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Where each example begins, int64 [examples + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @functools.cached_property
    def _values(self) -> tuple[np.ndarray, np.ndarray | None, memoryview]:
        head = self.head
        part = self._checked(self._bytes[head.examples * 4 :], head.values_digest)
        split, end = head.tokens * np.dtype(head.dtype).itemsize, len(part) - head.column_bytes
        weights = np.frombuffer(part[split:end], np.float32) if head.weighted else None
        return np.frombuffer(part[:split], np.dtype(head.dtype)), weights, part[end:]

    @property
    def ids(self) -> np.ndarray:
        """Ids of all examples, [tokens]; raises ShardError for a damaged file."""
        return self._values[0]

    @property
    def weights(self) -> np.ndarray | None:
        """Weights of all ids as targets, float32 [tokens]; None where all are 1."""
        return self._values[1]

    def columns(self, example: int) -> bytes:
        """Returns the columns of the record behind an example, as they were written; b"" without a record."""
        stored, ends_bytes = self._values[2], self.head.examples * 4
        if not stored:
            return b""
        ends = np.frombuffer(stored[:ends_bytes], np.uint32)
        begin = int(ends[example - 1]) if example else 0
        return bytes(stored[ends_bytes + begin : ends_bytes + int(ends[example])])
