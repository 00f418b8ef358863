"""Reading a step back: structure first, then the arrays, then the proof that they are the saved ones."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
from kanawa.contracts import Restored

from kanawa_runtime.checkpoint import agreement
from kanawa_runtime.checkpoint.digest import digest_text, start_digest
from kanawa_runtime.checkpoint.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointStructureError,
    CheckpointUnreadableError,
    is_storage_failure,
)
from kanawa_runtime.checkpoint.manifest import Manifest, brief, text_digest
from kanawa_runtime.checkpoint.roots.root import Root
from kanawa_runtime.checkpoint.structure import check_structure, flatten, rebuild

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PassedOver:
    """A step that could not be used, where it lies and why."""

    root: Root
    step: int
    reasons: tuple[str, ...]


def restore_step(root: Root, step: int, asked: Mapping[str, Any]) -> Restored:
    """Returns one step exactly.

    Raises CheckpointNotFoundError, CheckpointStructureError, CheckpointDamagedError, and CheckpointUnreadableError
    where the storage failed.
    """
    steps = root.steps()
    if step not in steps:
        message = f"{root.where} has no committed checkpoint {step}; it has {steps or 'none'}"
        raise CheckpointNotFoundError(message)
    # Structure before bytes: a wrong config is the user's to mend, and must not look like damage.
    manifest = _agreed_manifest(root, step)
    leaves = {item: flatten(tree) for item, tree in asked.items()}
    check_structure(f"checkpoint {root.location(step)}", leaves, manifest.arrays)
    arrays, data, meta = _read(root, step, manifest, leaves)
    _verify(root.location(step), manifest, arrays)
    items = {item: rebuild(tree, arrays[item]) for item, tree in asked.items()}
    return Restored(step, items, data, meta, place=root.location(step))


def restore_newest(
    candidates: Sequence[tuple[Root, int]], asked: Mapping[str, Any]
) -> tuple[Restored | None, list[PassedOver]]:
    """Returns the newest sound step and what was passed over; (None, []) where there are no steps.

    Of places that hold the same step, the one that comes first in `candidates` is asked first.
    """
    passed: list[PassedOver] = []
    for root, step in sorted(candidates, key=lambda candidate: -candidate[1]):
        try:
            restored = restore_step(root, step, asked)
        except CheckpointDamagedError as error:
            passed.append(PassedOver(root, step, error.reasons))
            continue
        except (CheckpointNotFoundError, CheckpointUnreadableError) as error:
            if not root.is_private:
                raise
            # A quick place beside the run's own: what it lacks, or can't give, the run's own has.
            passed.append(PassedOver(root, step, (str(error),)))
            continue
        return dataclasses.replace(restored, damaged={p.step: p.reasons for p in passed}), passed
    if passed:
        listed = "\n  ".join(f"{p.root.location(p.step)}: {reason}" for p in passed for reason in p.reasons)
        message = (
            f"none of the checkpoints in {passed[-1].root.where} can be restored:\n  {listed}\n"
            "Copy the run from a backup, or start a new run directory"
        )
        raise CheckpointDamagedError(message, tuple(listed.splitlines()))
    return None, []


def _agreed_manifest(root: Root, step: int) -> Manifest:
    """Returns the manifest, once every process could read it."""
    manifest: Manifest | None = None
    reasons: tuple[str, ...] = ()
    failures: list[str] = []
    try:
        manifest = root.manifest(step)
    except CheckpointDamagedError as error:
        reasons = error.reasons
    except CheckpointUnreadableError as error:
        failures = [str(error)]
    folder = root.location(step)
    if not agreement.all_agree(manifest is not None) or manifest is None:
        _raise_unreadable(folder, failures)
        _raise_damaged(folder, list(reasons) or ["another process could not read the manifest"])
    # Each process of a gang may have its own from another attempt, and parts of two attempts are no step.
    if root.is_private and not agreement.same_everywhere(bytes.fromhex(manifest.identity)):
        _raise_damaged(folder, ["the processes hold this step of different attempts"])
    return manifest


def _read(
    root: Root, step: int, manifest: Manifest, leaves: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, jax.Array]], Any, Any]:
    """Reads all items; the processes agree on success before anything collective runs."""
    arrays: dict[str, dict[str, jax.Array]] = {}
    texts: dict[str, Any] = {}
    reasons: list[str] = []
    failures: list[str] = []
    for item, wanted in leaves.items():
        try:
            arrays[item] = root.arrays(step, manifest, item, wanted)
            jax.block_until_ready(arrays[item])
        except CheckpointStructureError:
            raise
        except Exception as error:  # noqa: BLE001 - damaged bytes make the readers raise anything
            kind = failures if is_storage_failure(error) else reasons
            kind.append(f"{item} can't be read: {brief(error)}")
    for name, digest in manifest.texts.items():
        try:
            texts[name] = root.text(step, manifest, name)
        except Exception as error:  # noqa: BLE001 - as above
            kind = failures if is_storage_failure(error) else reasons
            kind.append(f"{name} can't be read: {brief(error)}")
            continue
        if text_digest(texts[name]) != digest:
            reasons.append(f"{name} is not what was saved: its SHA-256 differs")
    # Digests below are collective: a process that failed to read and left would make all others wait for ever.
    if not agreement.all_agree(not reasons and not failures):
        _raise_unreadable(root.location(step), failures)
        _raise_damaged(root.location(step), reasons or ["another process could not read its part"])
    return arrays, texts.get("data"), texts.get("meta")


def _verify(folder: str, manifest: Manifest, arrays: Mapping[str, Mapping[str, jax.Array]]) -> None:
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


def _raise_unreadable(folder: str, failures: list[str]) -> None:
    """Raises CheckpointUnreadableError if the storage failed in any process; all that got here must call."""
    if agreement.all_agree(not failures):
        return
    message = (
        f"checkpoint {folder} can't be read now: {'; '.join(failures) or 'the storage failed in another process'}. "
        "That is the storage's failure, not damage: nothing was changed. Mend it, and run the same command again"
    )
    raise CheckpointUnreadableError(message)


def _raise_damaged(folder: str, reasons: list[str]) -> NoReturn:
    message = f"checkpoint {folder} is damaged:\n  " + "\n  ".join(reasons)
    raise CheckpointDamagedError(message, tuple(reasons))
