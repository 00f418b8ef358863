"""Reading a step back: structure first, then the arrays, then the proof that they are the saved ones."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax
from kanawa.contracts import Restored

from kanawa_runtime.checkpoint import agreement, layout
from kanawa_runtime.checkpoint.array_store import read_arrays, read_text
from kanawa_runtime.checkpoint.digest import digest_text, start_digest
from kanawa_runtime.checkpoint.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointStructureError,
    CheckpointUnreadableError,
    is_storage_failure,
)
from kanawa_runtime.checkpoint.manifest import (
    Manifest,
    brief,
    is_committed,
    read_manifest,
    text_digest,
)
from kanawa_runtime.checkpoint.structure import check_structure, flatten, rebuild

logger = logging.getLogger(__name__)


def restore_step(directory: Path, step: int, asked: Mapping[str, Any]) -> Restored:
    """Returns one step exactly.

    Raises CheckpointNotFoundError, CheckpointStructureError, CheckpointDamagedError, and CheckpointUnreadableError
    where the storage failed.
    """
    folder = directory / str(step)
    if not is_committed(folder):
        steps = layout.committed_steps(directory)
        message = f"{directory} has no committed checkpoint {step}; it has {steps or 'none'}"
        raise CheckpointNotFoundError(message)
    # Structure before bytes: a wrong config is the user's to mend, and must not look like damage.
    manifest = _agreed_manifest(folder)
    leaves = {item: flatten(tree) for item, tree in asked.items()}
    check_structure(f"checkpoint {folder}", leaves, manifest.arrays)
    arrays, data, meta = _read(folder, manifest, leaves)
    _verify(folder, manifest, arrays)
    items = {item: rebuild(tree, arrays[item]) for item, tree in asked.items()}
    return Restored(step, items, data, meta)


def restore_newest(
    directory: Path, steps: list[int], asked: Mapping[str, Any]
) -> tuple[Restored | None, dict[int, tuple[str, ...]]]:
    """Returns the newest sound step and the reasons against each newer one; (None, {}) where there are no steps."""
    damaged: dict[int, tuple[str, ...]] = {}
    for step in sorted(steps, reverse=True):
        try:
            restored = restore_step(directory, step, asked)
        except CheckpointDamagedError as error:
            damaged[step] = error.reasons
            continue
        return dataclasses.replace(restored, damaged=dict(damaged)), damaged
    if damaged:
        listed = "\n  ".join(f"{step}: {reason}" for step, reasons in damaged.items() for reason in reasons)
        message = (
            f"none of the checkpoints in {directory} can be restored:\n  {listed}\n"
            "Copy the run from a backup, or start a new run directory"
        )
        raise CheckpointDamagedError(message, tuple(listed.splitlines()))
    return None, {}


def _agreed_manifest(folder: Path) -> Manifest:
    """Returns the manifest, once every process could read it."""
    manifest: Manifest | None = None
    reasons: tuple[str, ...] = ()
    failures: list[str] = []
    try:
        manifest = read_manifest(folder)
    except CheckpointDamagedError as error:
        reasons = error.reasons
    except CheckpointUnreadableError as error:
        failures = [str(error)]
    if not agreement.all_agree(manifest is not None) or manifest is None:
        _raise_unreadable(folder, failures)
        _raise_damaged(folder, list(reasons) or ["another process could not read the manifest"])
    return manifest


def _read(
    folder: Path, manifest: Manifest, leaves: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, jax.Array]], Any, Any]:
    """Reads all items; the processes agree on success before anything collective runs."""
    arrays: dict[str, dict[str, jax.Array]] = {}
    texts: dict[str, Any] = {}
    reasons: list[str] = []
    failures: list[str] = []
    for item, wanted in leaves.items():
        try:
            arrays[item] = read_arrays(folder, item, wanted)
            jax.block_until_ready(arrays[item])
        except CheckpointStructureError:
            raise
        except Exception as error:  # noqa: BLE001 - damaged bytes make the readers raise anything
            kind = failures if is_storage_failure(error) else reasons
            kind.append(f"{item} can't be read: {brief(error)}")
    for name, digest in manifest.texts.items():
        try:
            texts[name] = read_text(folder, name)
        except Exception as error:  # noqa: BLE001 - as above
            kind = failures if is_storage_failure(error) else reasons
            kind.append(f"{name} can't be read: {brief(error)}")
            continue
        if text_digest(texts[name]) != digest:
            reasons.append(f"{name} is not what was saved: its SHA-256 differs")
    # Digests below are collective: a process that failed to read and left would make all others wait for ever.
    if not agreement.all_agree(not reasons and not failures):
        _raise_unreadable(folder, failures)
        _raise_damaged(folder, reasons or ["another process could not read its part"])
    return arrays, texts.get("data"), texts.get("meta")


def _verify(folder: Path, manifest: Manifest, arrays: Mapping[str, Mapping[str, jax.Array]]) -> None:
    """Raises CheckpointDamagedError naming every array whose bits are not the saved ones."""
    digests = {item: {path: start_digest(leaf) for path, leaf in leaves.items()} for item, leaves in arrays.items()}
    reasons = []
    for item, leaves in digests.items():
        for path, digest in leaves.items():
            saved, read = manifest.arrays[item][path].digest, digest_text(digest)
            if saved != read:
                reasons.append(f"{item}: {path} is not what was saved: digest {read}, saved {saved}")
    if reasons:
        _raise_damaged(folder, reasons)


def _raise_unreadable(folder: Path, failures: list[str]) -> None:
    """Raises CheckpointUnreadableError if the storage failed in any process; all that got here must call."""
    if agreement.all_agree(not failures):
        return
    message = (
        f"checkpoint {folder} can't be read now: {'; '.join(failures) or 'the storage failed in another process'}. "
        "That is the storage's failure, not damage: nothing was changed. Mend it, and run the same command again"
    )
    raise CheckpointUnreadableError(message)


def _raise_damaged(folder: Path, reasons: list[str]) -> NoReturn:
    message = f"checkpoint {folder} is damaged:\n  " + "\n  ".join(reasons)
    raise CheckpointDamagedError(message, tuple(reasons))
