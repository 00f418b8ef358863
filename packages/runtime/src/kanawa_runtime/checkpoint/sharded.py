"""Checkpoints in a folder or an object store, and in quicker places beside it; each process writes what it holds."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from kanawa.config import NonNegative, Size
from kanawa.contracts import (
    Checkpointer,
    CheckpointError,
    CheckpointSaveError,
    Lease,
    LeaseLostError,
    Restored,
    StorageError,
)
from kanawa.contracts.checkpointer import CheckpointCallback

from kanawa_runtime import faults
from kanawa_runtime.checkpoint import agreement, layout
from kanawa_runtime.checkpoint.digest import start_digest
from kanawa_runtime.checkpoint.errors import CheckpointUnreadableError
from kanawa_runtime.checkpoint.manifest import COMMIT, Manifest, PartEntry, brief, text_digest
from kanawa_runtime.checkpoint.pending import Pending
from kanawa_runtime.checkpoint.restore import PassedOver, restore_newest, restore_step
from kanawa_runtime.checkpoint.roots.root import Root
from kanawa_runtime.checkpoint.shards.write import HostPiece, snapshot, write_part
from kanawa_runtime.checkpoint.structure import check_savable, flatten
from kanawa_runtime.checkpoint.tiers import Tier, open_root, open_tier

logger = logging.getLogger(__name__)

_ITEMS = ("params", "state", "opt")


@dataclasses.dataclass
class _Save(Pending):
    """A save with the pieces of this process and the places that get it, quick ones first."""

    pieces: list[HostPiece] = dataclasses.field(default_factory=list)
    roots: list[Root] = dataclasses.field(default_factory=list)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    key: str = ""
    refused: dict[int, str] = dataclasses.field(default_factory=dict)


class ShardedCheckpointer(Checkpointer):
    """Writes pieces of arrays in volumes, an index a process, and a manifest whose commit makes the step count.

    The directory is a folder that all processes share, or an address. A failed save raises CheckpointSaveError at the
    next `save` or at `wait`, and leaves older steps as they were; one that a quick place refuses is an event. Raises
    LeaseLostError once another process has taken the run over.
    """

    class Config(Checkpointer.Config):
        PLACEMENT = ("timeout_seconds", "patience_seconds", "volume_bytes", "tiers")

        timeout_seconds: Size = 600
        patience_seconds: NonNegative = 10.0
        volume_bytes: Size = 128 * 2**20
        tiers: tuple[Tier, ...] = ()

    def __init__(
        self,
        cfg: Any,
        *,
        directory: Path | str,
        keep_last_n: int = 3,
        keep_every_n_steps: int | None = None,
        on_event: CheckpointCallback | None = None,
        read_only: bool = False,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(
            cfg,
            directory=directory,
            keep_last_n=keep_last_n,
            keep_every_n_steps=keep_every_n_steps,
            on_event=on_event,
            read_only=read_only,
            lease=lease,
        )
        self._root = open_root(self.directory, lease)
        # A reader restores what the run has committed: what lies in some host's memory is the run's own affair.
        self._tiers = [] if read_only else [(tier, open_tier(tier, self.directory, lease)) for tier in cfg.tiers]
        self._thread: threading.Thread | None = None
        self._pending: _Save | None = None
        self._failure: CheckpointError | LeaseLostError | None = None
        self._current_step: int | None = None
        self._token: int | None = None
        self._saves = 0
        if not read_only:
            self._open()

    # --- the contract ------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Returns the steps committed at the run's own place. Raises CheckpointUnreadableError where that fails."""
        with self._reading():
            return self._root.steps()

    def due(self, step: int) -> bool:
        """Whether a quick place wants this step, whatever the run's own policy says."""
        return any(step % tier.every_steps == 0 for tier, _ in self._tiers)

    def save(
        self,
        step: int,
        *,
        params: Any,
        opt: Mapping[str, jax.Array],
        state: Any = None,
        data: Any = None,
        meta: Mapping[str, Any] | None = None,
        provisional: bool = False,
        quick: bool = False,
    ) -> bool:
        """Starts saving `step`; see the contract. Raises CheckpointStructureError for leaves that can't be saved."""
        started = time.perf_counter()
        # One save at a time: a second one would hold another copy of the whole state in host memory.
        self.wait()
        if self.read_only:
            message = f"the checkpoints in {self.directory} were opened for reading only"
            raise CheckpointError(message)
        if step == self._current_step and not quick:
            return False
        trees = {"params": flatten(params), "state": flatten(state or {}), "opt": dict(opt)}
        for item, leaves in trees.items():
            check_savable(item, leaves)
        pending = self._begun(step, trees, {"data": data, "meta": dict(meta or {})}, started, quick=quick)
        for number, root in enumerate(pending.roots):
            # One place that refuses must not keep the others from the step; all processes hear of it before the commit.
            try:
                if root.is_private or agreement.is_primary():
                    faults.reached("pre_mkdir", self._folder(step))
                    root.begin(step)
            except (OSError, StorageError) as error:
                pending.refused[number] = brief(error)
        pending.pieces = snapshot(trees)
        if not quick:
            self._current_step = step
        pending.blocking_seconds = time.perf_counter() - started
        if not provisional:
            pending.decide(commit=True)
        self._pending = pending
        # No daemon: an interpreter that exits waits for the checkpoint it has begun.
        self._thread = threading.Thread(target=self._finish, args=(pending,), name=f"checkpoint-{step}")
        self._thread.start()
        return True

    def is_writing(self) -> bool:
        """Whether the last save is still under way after some patience; the primary process's word for all."""
        thread = self._thread
        if thread is not None and agreement.is_primary():
            thread.join(self.config.patience_seconds)
        busy = thread is not None and thread.is_alive()
        return bool(agreement.of_primary(int(busy)))

    def commit(self, step: int) -> None:
        """Lets a provisional save count; see the contract."""
        if self._pending is not None and self._pending.step == step:
            self._pending.decide(commit=True)

    def restore(self, abstract: Mapping[str, Any], *, step: int | None = None) -> Restored | None:
        """Returns the asked items; see the contract.

        Raises CheckpointStructureError where leaves are missing, unexpected or differ, CheckpointDamagedError where
        nothing sound is left, CheckpointNotFoundError for a `step` that isn't there.
        """
        self.wait()
        faults.reached("in_restore", self._folder() if step is None else self._folder(step))
        restored: Restored | None
        if step is not None:
            with self._reading():
                restored = restore_step(self._root, step, abstract)
        else:
            with self._reading():
                candidates = self._candidates()
                restored, passed = restore_newest(candidates, abstract)
                for newer in passed:
                    self._passed_over(newer, restored.step if restored else None)
        if restored is not None:
            self._current_step = restored.step
        return restored

    def go_back(self, step: int) -> list[str]:
        """Sets the steps after `step` aside, as `STEP.left`; quick places lose theirs. See the contract."""
        self.wait()
        later = [other for other in agreement.agreed_steps(self.steps()) if other > step]
        self._current_step = step
        if self.read_only:
            return []
        with self._reading():
            for _, tier in self._tiers:
                for other in [other for other in tier.steps() if other > step]:
                    tier.delete(other)
            return [self._root.set_aside(other, "left") for other in later] if agreement.is_primary() else []

    def wait(self) -> None:
        """Returns when no save is under way, a provisional one dropped; see the contract."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.decide(commit=False)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if pending is not None and not pending.is_committed and pending.step == self._current_step:
            # Not saved after all: asking for the same step again must not be taken for done.
            self._current_step = None
        failure = self._failure
        if not isinstance(failure, LeaseLostError):
            self._failure = None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Waits, then closes connections; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._root.storage.close()

    # --- opening and reading -----------------------------------------------------------------------------------

    def _open(self) -> None:
        from kanawa_runtime.train.commits import recorded_commits

        with self._reading():
            for _, tier in self._tiers:
                tier.open(())
            if not agreement.is_primary():
                return
            recorded = recorded_commits(self.directory.parent) if isinstance(self.directory, Path) else ()
            lost = self._root.open(recorded)
        for step, place in lost.items():
            reason = f"{COMMIT} is missing, although the step was committed; it is set aside, and kept, as {place}"
            logger.warning("checkpoint %d does not count: %s", step, reason)
            self.on_event("checkpoint_damaged", {"step": step, "reasons": [reason], "used": None})

    def _candidates(self) -> list[tuple[Root, int]]:
        """Returns what can be restored, quick places first; the same in all processes."""
        quick = [(tier, step) for _, tier in self._tiers for step in agreement.common_steps(tier.steps())]
        return quick + [(self._root, step) for step in agreement.agreed_steps(self.steps())]

    def _passed_over(self, newer: PassedOver, used: int | None) -> None:
        """Explains a fallback and moves the damaged step out of the way of the next save."""
        place = newer.root.location(newer.step)
        logger.warning("checkpoint %s can't be used, using %s instead: %s", place, used, "; ".join(newer.reasons))
        fields = {"step": newer.step, "reasons": list(newer.reasons), "used": used}
        self.on_event("checkpoint_damaged", fields | ({"path": place} if newer.root.is_private else {}))
        if used is None or self.read_only:
            return
        if newer.root.is_private:
            newer.root.delete(newer.step)
        elif agreement.is_primary():
            newer.root.set_aside(newer.step, "damaged")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Has what the storage refuses be said as what it is: no damage, and no bug."""
        try:
            yield
        except (OSError, StorageError) as error:
            message = (
                f"the storage of the checkpoints in {self.directory} fails: {brief(error)}. Nothing was removed. Mend "
                "it (permissions, open files, mounts), and run the same command again"
            )
            raise CheckpointUnreadableError(message) from error

    def _folder(self, *names: object) -> Path | None:
        """Returns what a fault may spoil: the run's own folder, where it is one."""
        return Path(self.directory, *map(str, names)) if isinstance(self.directory, Path) else None

    # --- saving ------------------------------------------------------------------------------------------------

    def _begun(
        self,
        step: int,
        trees: Mapping[str, Mapping[str, jax.Array]],
        values: dict[str, Any],
        started: float,
        *,
        quick: bool,
    ) -> _Save:
        """Starts the digests on the devices, before the caller may donate the arrays."""
        try:
            texts = {name: text_digest(value) for name, value in values.items()}
        except TypeError as error:
            message = f"checkpoint {step}: data and meta must be JSON values: {error}"
            raise CheckpointError(message) from error
        if self._token is None:
            self._token = agreement.of_primary(0 if self.lease is None else self.lease.token)
        self._saves += 1
        roots = [root for tier, root in self._tiers if step % tier.every_steps == 0]
        return _Save(
            step,
            {item: {path: start_digest(leaf) for path, leaf in leaves.items()} for item, leaves in trees.items()},
            {
                item: {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()}
                for item, leaves in trees.items()
            },
            texts,
            started,
            roots=roots if quick else [*roots, self._root],
            values=values,
            prefix=f"t{self._token}-{self._saves}.p{jax.process_index():05d}",
            key=f"kanawa/checkpoint/{self._token}/{self._saves}",
        )

    def _finish(self, pending: _Save) -> None:
        """Runs in the background: writes, waits for the word to commit, commits, deletes old steps, reports."""
        written: dict[int, tuple[PartEntry | None, str, int]] = {}
        for number, root in enumerate(pending.roots):
            refused = pending.refused.get(number)
            written[number] = self._written(pending, root) if refused is None else (None, refused, 0)
        seconds = time.perf_counter() - pending.started
        pending.pieces = []
        try:
            if not pending.may_count():
                self._drop(pending)
                return
            told = json.dumps({n: [p and dataclasses.astuple(p), error] for n, (p, error, _) in written.items()})
            # Of all processes: a step that one of them could not write is no step.
            everyone = [json.loads(text) for text in self._exchange(pending, "parts", told)]
            for number, root in enumerate(pending.roots):
                answers = [answer[str(number)] for answer in everyone]
                error = next((error for _, error in answers if error), "")
                parts = tuple(PartEntry(*part) for part, _ in answers if part)
                self._settle(pending, root, parts, error, seconds, written[number][2])
        except LeaseLostError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - whatever failed in the background is raised at the next call
            self._failure = self._loss_of_lease() or self._failed(pending, error)
        finally:
            if agreement.is_primary():
                with contextlib.suppress(RuntimeError):
                    agreement.forget(f"kanawa/checkpoint/{self._token}/{self._saves - 1}")

    def _loss_of_lease(self) -> LeaseLostError | None:
        """Returns why nothing may be written any more: the heir removes what this process was writing."""
        try:
            if self.lease is not None:
                self.lease.check()
        except LeaseLostError as lost:
            return lost
        except StorageError:
            pass  # what failed says more
        return None

    def _written(self, pending: _Save, root: Root) -> tuple[PartEntry | None, str, int]:
        """Writes this process's part to a place; returns its entry, or what went wrong, and the bytes."""

        def write(name: str, data: Any) -> None:
            root.write(pending.step, name, data)
            faults.reached("mid_write", self._folder(pending.step, name))

        try:
            name, data, size = write_part(pending.pieces, pending.prefix, self.config.volume_bytes, write)
        except Exception as error:  # noqa: BLE001 - the others wait for the word, whatever it is
            return None, brief(error), 0
        return PartEntry(name, hashlib.sha256(data).hexdigest()), "", size

    def _exchange(self, pending: _Save, what: str, text: str) -> list[str]:
        return agreement.gathered(f"{pending.key}/{what}", text, self.config.timeout_seconds)

    def _settle(
        self, pending: _Save, root: Root, parts: tuple[PartEntry, ...], error: str, seconds: float, size: int
    ) -> None:
        """Commits a step at one place, or says why not. Raises what failed at the run's own."""
        if not error and (root.is_private or agreement.is_primary()):
            manifest = Manifest(pending.step, pending.entries(), pending.texts, parts, pending.values, self._token or 0)
            try:
                faults.reached("pre_manifest", self._folder(pending.step))
                root.commit(manifest)
                faults.reached("post_commit", self._folder(pending.step))
            except (OSError, StorageError) as problem:
                error = brief(problem)
        if not root.is_private:
            # The primary process alone knows whether the step counts.
            error = self._exchange(pending, "outcome", error)[0]
        if error:
            if not root.is_private:
                raise CheckpointSaveError(error)
            self._tier_failed(pending, root, error)
            return
        fields = {"step": pending.step, "path": root.location(pending.step), "bytes": size}
        fields |= {"blocking_seconds": pending.blocking_seconds, "seconds": seconds}
        if root.is_private:
            self.on_event("tier_committed", fields | {"tier": root.name})
        else:
            self.on_event("checkpoint_committed", fields)
        self._delete_old(root)

    def _delete_old(self, root: Root) -> None:
        """Makes room. That it can't is said, and no failure: the new step counts by now."""
        if not (root.is_private or agreement.is_primary()):
            return
        keep, every = self.keep_last_n, self.keep_every_n_steps
        for tier, place in self._tiers:
            if place is root:
                keep, every = tier.keep_last, None
        try:
            for step in layout.steps_to_delete(root.steps(), keep, every):
                faults.reached("in_gc", self._folder(step))
                root.delete(step)
        except (OSError, StorageError) as error:
            logger.warning("old checkpoints in %s can't be deleted: %s", root.where, brief(error))

    def _drop(self, pending: _Save) -> None:
        """Removes a step that nobody vouched for; to a reader it looks like a save that was never finished."""
        self._discard(pending)
        if pending.roots[-1:] == [self._root]:
            fields = {"step": pending.step, "path": self._root.location(pending.step)}
            self.on_event("checkpoint_dropped", fields)

    def _discard(self, pending: _Save) -> None:
        for root in pending.roots:
            if root.is_private or agreement.is_primary():
                try:
                    root.discard(pending.step)
                except (OSError, StorageError, LeaseLostError) as error:
                    # On the thread that saves nobody would see this one; the first error says more.
                    logger.warning("%s can't be tidied up: %s", root.where, brief(error))

    def _tier_failed(self, pending: _Save, root: Root, error: str) -> None:
        place = root.location(pending.step)
        logger.warning("checkpoint %d could not be saved to %s: %s", pending.step, place, error)
        self.on_event("checkpoint_failed", {"step": pending.step, "path": place, "error": error, "tier": root.name})
        with contextlib.suppress(OSError, StorageError):
            root.discard(pending.step)

    def _failed(self, pending: _Save, error: BaseException) -> CheckpointSaveError:
        """Reports a failed save, frees its space and returns the error to raise."""
        # Not saved after all: asking for the same step again must not be taken for done.
        self._current_step = None
        pending.roots = pending.roots[-1:]
        kept = []
        self._discard(pending)
        with contextlib.suppress(CheckpointUnreadableError):
            kept = self.steps()
        reason = str(error) if isinstance(error, CheckpointSaveError) else brief(error)
        place = self._root.location(pending.step)
        intact = f"older checkpoints are intact: {kept}" if kept else "there is no older checkpoint"
        message = (
            f"checkpoint {pending.step} could not be saved to {place}: {reason}; {intact}. "
            "Free space or fix permissions; the next save starts afresh"
        )
        logger.error("%s", message)
        self.on_event("checkpoint_failed", {"step": pending.step, "path": place, "error": reason})
        failure = CheckpointSaveError(message)
        failure.__cause__ = error
        return failure
