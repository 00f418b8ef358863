"""Adapters on disk: one folder each, with their arrays, how they were made, and whose they are."""

import dataclasses
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.errors import KanawaError
from kanawa.guarded_read import UnreadableFileError, guarded_json, guarded_open, plain_name

SCHEME = "tinker://"
_FORMAT, _ABOUT, _ARRAYS = "kanawa-training-1", "adapter.json", "arrays.npz"
_MOST_BYTES = 1 << 20
_FOLDERS = ("weights", "sampler_weights")


class SavedError(KanawaError):
    """An address leads to no saved adapter that this client may read, or it can't be written or read."""


@dataclasses.dataclass(frozen=True)
class SavedAdapter:
    """An adapter as it was saved: `arrays` by "params/…" and "opt/…", and the facts that make it again."""

    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def of(self, part: str) -> dict[str, np.ndarray]:
        """Returns the arrays of "params" or "opt" by their own names."""
        prefix = f"{part}/"
        return {name.removeprefix(prefix): x for name, x in self.arrays.items() if name.startswith(prefix)}


class SavedAdapters:
    """The adapters below one folder, by addresses `tinker://MODEL/weights/NAME`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def address(self, model_id: str, kind: str, name: str) -> str:
        """Returns the address of what is saved under a name; raises SavedError for a name that can't be a file's."""
        if not plain_name(name) or name.startswith("."):
            message = f"{name[:80]!r} can't be the name of a checkpoint: expected one that a file can have"
            raise SavedError(message)
        return f"{SCHEME}{model_id}/{kind}/{name}"

    def is_taken(self, address: str) -> bool:
        """Returns whether something is saved there."""
        return self._place(address).exists()

    def save(self, address: str, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Writes an adapter whole, in the place of what was there; raises SavedError where the disk refuses."""
        place = self._place(address)
        part = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
        try:
            part.mkdir(parents=True)
            np.savez(part / _ARRAYS, **arrays)  # type: ignore[arg-type]
            facts = {"format": _FORMAT, **about, "sha256": _digest(arrays)}
            (part / _ABOUT).write_text(json.dumps(facts, indent=1))
            shutil.rmtree(place, ignore_errors=True)
            os.replace(part, place)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            message = f"{address} can't be saved: {error.strerror or error}"
            raise SavedError(message) from error

    def load(self, address: str, owner: str) -> SavedAdapter:
        """Returns what is saved at an address; raises SavedError, also for what another client saved."""
        place = self._place(address)
        try:
            about = guarded_json(place / _ABOUT, self.folder, most=_MOST_BYTES)
            if about["format"] != _FORMAT or about["owner"] != owner:
                raise FileNotFoundError
            with guarded_open(place / _ARRAYS, self.folder) as file, np.load(file, allow_pickle=False) as held:
                arrays = {name: held[name] for name in held.files}
        except (OSError, UnreadableFileError, ValueError, KeyError, TypeError) as error:
            why = "there is none" if isinstance(error, FileNotFoundError) else str(error)
            message = f"{address[:200]} leads to no checkpoint that this key may read: {why}"
            raise SavedError(message) from error
        if _digest(arrays) != about["sha256"]:
            message = f"{address} is damaged: its arrays aren't those that were saved"
            raise SavedError(message)
        return SavedAdapter(about, arrays)

    def _place(self, address: str) -> Path:
        parts = address.removeprefix(SCHEME).split("/")
        good = len(parts) == 3 and parts[1] in _FOLDERS and all(plain_name(p) and p[0] != "." for p in parts)
        if not address.startswith(SCHEME) or not good:
            message = f"{address[:200]!r} is no address of a checkpoint, such as {SCHEME}MODEL/weights/NAME"
            raise SavedError(message)
        return self.folder.joinpath(*parts)


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
