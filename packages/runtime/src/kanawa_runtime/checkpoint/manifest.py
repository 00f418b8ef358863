"""What a checkpoint holds, array by array, and the file whose presence makes it count.

`manifest.json` is written once the arrays are on disk; `COMMIT.json` after it, last of all, with
the manifest's SHA-256. A step directory without COMMIT.json was never finished. Both files are made
durable before the next.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.guarded_read import UnreadableFileError, guarded_bytes

from kanawa_runtime import faults
from kanawa_runtime.checkpoint.digest import ALGORITHM
from kanawa_runtime.checkpoint.errors import (
    CheckpointDamagedError,
    CheckpointStructureError,
    CheckpointUnreadableError,
    is_storage_failure,
    quoted_number,
)
from kanawa_runtime.storage.durable import write_durable

#: 1: arrays by orbax, JSON items in files of their own. 2: arrays in parts of ours, JSON items in the manifest.
FORMAT = 2
MANIFEST = "manifest.json"
COMMIT = "COMMIT.json"
#: An array takes some 200 bytes of a manifest, and the largest models have a million of them.
_MOST_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class ArrayEntry:
    """Shape, dtype name and digest of one saved array. Empty arrays have entries but no bytes."""

    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclasses.dataclass(frozen=True)
class PartEntry:
    """The file in which one process says where its pieces of arrays lie, and that file's SHA-256."""

    name: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Array entries by item and path, and the SHA-256 of each JSON item's canonical text.

    Of format 2 also the `parts` of the processes that wrote, and the JSON items themselves as `values`.
    """

    step: int
    arrays: Mapping[str, Mapping[str, ArrayEntry]]
    texts: Mapping[str, str]
    parts: tuple[PartEntry, ...] = ()
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    token: int = 0

    @property
    def identity(self) -> str:
        """A SHA-256 over what was saved and by which parts: of two saves, even of one step, it differs."""
        parts = [dataclasses.asdict(part) for part in self.parts]
        digests = {item: {path: entry.digest for path, entry in leaves.items()} for item, leaves in self.arrays.items()}
        return text_digest([self.step, self.token, parts, digests])

    @property
    def is_sharded(self) -> bool:
        """Whether arrays lie in parts of ours, and not in folders of orbax."""
        return bool(self.parts)


def canonical_text(value: Any) -> str:
    """Returns the one JSON text of a value; raises TypeError for what JSON can't hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def text_digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value's canonical text."""
    return hashlib.sha256(canonical_text(value).encode()).hexdigest()


def encoded(manifest: Manifest) -> bytes:
    """Returns a manifest as it is written."""
    body = {
        "format": FORMAT if manifest.is_sharded else 1,
        "step": manifest.step,
        "digest": ALGORITHM,
        "arrays": {
            item: {path: dataclasses.asdict(entry) for path, entry in entries.items()}
            for item, entries in manifest.arrays.items()
        },
        "texts": dict(manifest.texts),
    }
    if manifest.is_sharded:
        parts = [dataclasses.asdict(part) for part in manifest.parts]
        body |= {"parts": parts, "values": dict(manifest.values), "token": manifest.token}
    return json.dumps(body, indent=1).encode()


def commit_text(step: int, data: bytes, name: str = MANIFEST) -> bytes:
    """Returns the content of the commit file for a manifest as it was written, under a name."""
    return json.dumps({"step": step, "manifest_sha256": hashlib.sha256(data).hexdigest(), "manifest": name}).encode()


def write_commit(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest, then the commit file, each durably. Raises OSError."""
    data = encoded(manifest)
    write_durable(directory / MANIFEST, data)
    faults.reached("pre_commit", directory / MANIFEST)
    # Last of all, so that its presence means that everything it covers is there.
    write_durable(directory / COMMIT, commit_text(manifest.step, data))


def is_committed(directory: Path) -> bool:
    """Whether the step directory was finished; says nothing on whether it is still sound."""
    # Anything of that name: what isn't an ordinary file is damage, which reading it reports.
    return os.path.lexists(directory / COMMIT)


def read_manifest(directory: Path) -> Manifest:
    """Returns a committed step's manifest.

    Raises CheckpointDamagedError where it or the commit file is not sound, CheckpointUnreadableError where the storage
    fails.
    """
    try:
        commit = json.loads(guarded_bytes(directory / COMMIT, most=_MOST_BYTES))
        expected, step, name = commit["manifest_sha256"], commit["step"], str(commit.get("manifest", MANIFEST))
    except (OSError, UnreadableFileError, ValueError, KeyError, TypeError) as error:
        message = f"{directory / COMMIT} can't be read: {brief(error)}"
        raise _unread(error)(message) from error
    try:
        data = guarded_bytes(directory / name, directory, most=_MOST_BYTES)
    except (OSError, UnreadableFileError) as error:
        message = f"{directory / name} can't be read: {brief(error)}"
        raise _unread(error)(message) from error
    # A copied or renamed folder would resume at a step whose data and random keys are others.
    if str(step) != directory.name:
        message = f"{directory} holds step {step}: the directory was renamed"
        raise CheckpointDamagedError(message)
    return parsed(data, expected, directory.name, f"{directory / name}")


def parsed(data: bytes, sha256: str, step: str, where: str) -> Manifest:
    """Returns the manifest of bytes that were read; raises CheckpointDamagedError for others than were committed."""
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        message = f"{where} has SHA-256 {actual}, but it was committed with {sha256}"
        raise CheckpointDamagedError(message)
    manifest = _parse(where, json.loads(data))
    if str(manifest.step) != step:
        message = f"{where} holds step {manifest.step}, expected {step}"
        raise CheckpointDamagedError(message)
    return manifest


def _unread(error: Exception) -> type[CheckpointDamagedError | CheckpointUnreadableError]:
    return CheckpointUnreadableError if is_storage_failure(error) else CheckpointDamagedError


def _parse(where: str, body: Mapping[str, Any]) -> Manifest:
    if body["format"] > FORMAT or body["digest"] != ALGORITHM:
        message = (
            f"{where} was written by a newer kanawa-runtime (format {body['format']}, "
            f"digest {body['digest']!r}); this one reads format {FORMAT}, digest {ALGORITHM!r}: "
            "upgrade it"
        )
        raise CheckpointStructureError(message, (message,))
    arrays = {
        item: {
            path: ArrayEntry(tuple(entry["shape"]), entry["dtype"], entry["digest"]) for path, entry in entries.items()
        }
        for item, entries in body["arrays"].items()
    }
    parts = tuple(PartEntry(part["name"], part["sha256"]) for part in body.get("parts", ()))
    return Manifest(body["step"], arrays, body["texts"], parts, body.get("values", {}), body.get("token", 0))


def brief(error: BaseException) -> str:
    """Returns an error's type and first line, and before them what the system said, which may stand far behind."""
    lines = str(error).strip().splitlines()
    number = quoted_number(error)
    said = "" if number is None else f"{os.strerror(number)}: "
    return f"{said}{type(error).__name__}: {lines[0][:300] if lines else ''}"
