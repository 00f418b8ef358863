"""Columns with a reference policy's log-probabilities, and the digest of the model and the ids they belong to."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.checkpoint.layout import committed_steps
from kanawa_runtime.data.shards import Example
from kanawa_runtime.runs.run_directory import checkpoints_of
from kanawa_runtime.runs.run_path import check_is_directory
from kanawa_runtime.storage.mirror import readable_folder

#: `MODEL:IDS`, both hex: what gave the sums, and what of.
DIGEST = "ref_digest"
#: Of judged completions: the ids of the mismatched one that follows the same prompt.
MISMATCHED = "mismatched_ids"
HOW_TO_WRITE = "write them anew: kanawa data reference FOLDER --data FILES --modify dpo --out known.jsonl"
_CHARACTERS = 16


class Segment(NamedTuple):
    """One sequence: its ids, and 1 for those of the completion, else 0."""

    ids: np.ndarray
    weights: np.ndarray


def sums_digest(model: str, first: Segment, second: Segment) -> str:
    """Returns what names a model by its digest, and two sequences by their ids and which of them are weighed."""
    return f"{model}:{_ids_digest((first, second))}"


def model_of(digest: object, first: Example, second: Example) -> str | None:
    """Returns the model that a digest of these sequences names; None where it is one of others."""
    model, _, ids = str(digest).partition(":")
    return model if model and ids == _ids_digest((first, second)) else None


def _ids_digest(parts: Iterable[tuple[np.ndarray, np.ndarray | None]]) -> str:
    hasher = hashlib.sha256()
    for ids, weights in parts:
        assert weights is not None
        hasher.update(np.asarray(ids, "<i4").tobytes() + b"\0" + (np.asarray(weights) > 0).tobytes() + b"\n")
    return hasher.hexdigest()[:_CHARACTERS]


def weights_digest(path: str | Path) -> str:
    """Returns a digest of the weights' files of a folder, or of a run's newest checkpoint; raises UsageError."""
    folder = readable_folder(path)
    check_is_directory(folder)
    files = sorted(folder.glob("*.safetensors"))
    saved = checkpoints_of(folder)
    if not files and isinstance(saved, Path) and (steps := committed_steps(saved)):
        files = sorted(file for file in (saved / f"{steps[-1]}").rglob("*") if file.is_file())
    if not files:
        message = f"{path} has no weights here to take a digest of: expected *.safetensors, or a run with a checkpoint"
        raise UsageError(message)
    hasher = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hasher.update(f"{file.name} {file.stat().st_size} ".encode())
            hasher.update(hashlib.file_digest(stream, "sha256").digest())
    return hasher.hexdigest()[:_CHARACTERS]
