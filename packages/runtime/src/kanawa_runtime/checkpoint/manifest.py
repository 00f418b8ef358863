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

from kanawa_runtime import faults
from kanawa_runtime.checkpoint.digest import ALGORITHM
from kanawa_runtime.checkpoint.durable import write_durable
from kanawa_runtime.checkpoint.errors import (
    CheckpointDamagedError,
    CheckpointStructureError,
    CheckpointUnreadableError,
    is_storage_failure,
    quoted_number,
)

FORMAT = 1
MANIFEST = "manifest.json"
COMMIT = "COMMIT.json"


@dataclasses.dataclass(frozen=True)
class ArrayEntry:
    """Shape, dtype name and digest of one saved array. Empty arrays have entries but no bytes."""

    shape: tuple[int, ...]
    dtype: str
    digest: str

    @property
    def is_empty(self) -> bool:
        """Whether the array has no elements; such arrays are not stored."""
        return 0 in self.shape


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Array entries by item and path, and the SHA-256 of each JSON item's canonical text."""

    step: int
    arrays: Mapping[str, Mapping[str, ArrayEntry]]
    texts: Mapping[str, str]


def canonical_text(value: Any) -> str:
    """Returns the one JSON text of a value; raises TypeError for what JSON can't hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def text_digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value's canonical text."""
    return hashlib.sha256(canonical_text(value).encode()).hexdigest()


def write_commit(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest, then the commit file, each durably. Raises OSError."""
    body = {
        "format": FORMAT,
        "step": manifest.step,
        "digest": ALGORITHM,
        "arrays": {
            item: {path: dataclasses.asdict(entry) for path, entry in entries.items()}
            for item, entries in manifest.arrays.items()
        },
        "texts": dict(manifest.texts),
    }
    data = json.dumps(body, indent=1).encode()
    write_durable(directory / MANIFEST, data)
    faults.reached("pre_commit", directory / MANIFEST)
    # Last of all, so that its presence means that everything it covers is there.
    commit = {"step": manifest.step, "manifest_sha256": hashlib.sha256(data).hexdigest()}
    write_durable(directory / COMMIT, json.dumps(commit).encode())


def is_committed(directory: Path) -> bool:
    """Whether the step directory was finished; says nothing on whether it is still sound."""
    return (directory / COMMIT).is_file()


def read_manifest(directory: Path) -> Manifest:
    """Returns a committed step's manifest.

    Raises CheckpointDamagedError where it or the commit file is not sound, CheckpointUnreadableError where the storage
    fails.
    """
    try:
        commit = json.loads((directory / COMMIT).read_bytes())
        expected, step = commit["manifest_sha256"], commit["step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{directory / COMMIT} can't be read: {brief(error)}"
        raise _unread(error)(message) from error
    try:
        data = (directory / MANIFEST).read_bytes()
    except OSError as error:
        message = f"{directory / MANIFEST} can't be read: {brief(error)}"
        raise _unread(error)(message) from error
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        message = f"{directory / MANIFEST} has SHA-256 {actual}, but it was committed with {expected}"
        raise CheckpointDamagedError(message)
    # A copied or renamed folder would resume at a step whose data and random keys are others.
    if str(step) != directory.name:
        message = f"{directory} holds step {step}: the directory was renamed"
        raise CheckpointDamagedError(message)
    return _parse(directory, json.loads(data))


def _unread(error: Exception) -> type[CheckpointDamagedError | CheckpointUnreadableError]:
    return CheckpointUnreadableError if is_storage_failure(error) else CheckpointDamagedError


def _parse(directory: Path, body: Mapping[str, Any]) -> Manifest:
    if body["format"] > FORMAT or body["digest"] != ALGORITHM:
        message = (
            f"{directory} was written by a newer kanawa-runtime (format {body['format']}, "
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
    return Manifest(body["step"], arrays, body["texts"])


def brief(error: BaseException) -> str:
    """Returns an error's type and first line, and before them what the system said, which may stand far behind."""
    lines = str(error).strip().splitlines()
    number = quoted_number(error)
    said = "" if number is None else f"{os.strerror(number)}: "
    return f"{said}{type(error).__name__}: {lines[0][:300] if lines else ''}"
