"""Asynchronous checkpoints that are restored bit for bit or reported as damaged, never silently wrong."""

import contextlib
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
from kanawa.local_path import local_path

from kanawa_runtime import faults
from kanawa_runtime.checkpoint import agreement, layout
from kanawa_runtime.checkpoint.array_store import ArrayStore
from kanawa_runtime.checkpoint.digest import start_digest
from kanawa_runtime.checkpoint.errors import CheckpointUnreadableError
from kanawa_runtime.checkpoint.manifest import (
    COMMIT,
    Manifest,
    brief,
    text_digest,
    write_commit,
)
from kanawa_runtime.checkpoint.pending import Pending
from kanawa_runtime.checkpoint.restore import restore_newest, restore_step
from kanawa_runtime.checkpoint.roots.directory import DirectoryRoot
from kanawa_runtime.checkpoint.structure import check_savable, flatten
from kanawa_runtime.storage.durable import sync_directory, sync_tree
from kanawa_runtime.storage.local import open_folder

logger = logging.getLogger(__name__)

ITEMS = ("params", "state", "opt")
TEXTS = ("data", "meta")


class OrbaxCheckpointer(Checkpointer):
    """Writes with orbax in the background, and adds what it lacks: digests of the arrays, a commit file, repair.

    Process 0 writes the shared files. A failed save raises CheckpointSaveError at the next `save` or at `wait`, and
    leaves older steps as they were.
    """

    class Config(Checkpointer.Config):
        PLACEMENT = ("timeout_seconds", "patience_seconds")

        timeout_seconds: Size = 600
        patience_seconds: NonNegative = 10.0

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
            directory=local_path(directory, "the orbax checkpointer's directory"),
            keep_last_n=keep_last_n,
            keep_every_n_steps=keep_every_n_steps,
            on_event=on_event,
            read_only=read_only,
            lease=lease,
        )
        self.directory: Path = Path(self.directory)
        self._root = DirectoryRoot(open_folder(self.directory), lease)
        self._store: ArrayStore | None = None
        self._thread: threading.Thread | None = None
        self._pending: Pending | None = None
        self._failure: CheckpointSaveError | LeaseLostError | None = None
        self._current_step: int | None = None
        self._saves = 0
        if not read_only and agreement.is_primary():
            with self._storage():
                self.directory.mkdir(parents=True, exist_ok=True)
                with self._root.guarded():
                    self._tidy()

    def _tidy(self) -> None:
        """Sets aside what has lost its commit file, and removes what was never finished."""
        from kanawa_runtime.train.commits import recorded_commits

        lost = layout.lost_commits(self.directory, recorded_commits(self.directory.parent))
        for step, place in lost.items():
            reason = f"{COMMIT} is missing, although the step was committed; it is set aside, and kept, as {place}"
            logger.warning("checkpoint %d does not count: %s", step, reason)
            self.on_event("checkpoint_damaged", {"step": step, "reasons": [reason], "used": None})
        removed = layout.remove_unfinished(self.directory)
        if removed:
            logger.info("removed unfinished checkpoints: %s", ", ".join(removed))

    def steps(self) -> list[int]:
        """Returns the committed steps, oldest first. Raises CheckpointUnreadableError where the storage fails."""
        with self._storage():
            return layout.committed_steps(self.directory)

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
        if quick:
            return False
        # One save at a time: a second one would hold another copy of the whole state in host memory.
        self.wait()
        if step == self._current_step:
            return False
        trees = {"params": flatten(params), "state": flatten(state or {}), "opt": dict(opt)}
        for item, leaves in trees.items():
            check_savable(item, leaves)
        texts = {"data": data, "meta": dict(meta or {})}
        pending = self._snapshot(step, trees, texts, started)
        try:
            if agreement.is_primary() and not self.read_only and not self.directory.is_dir():
                self._make_again()
            # A run that fell back past a damaged step reaches that number again.
            if agreement.is_primary():
                with self._root.guarded():
                    if (self.directory / str(step)).exists():
                        layout.set_aside_replaced(self.directory, step)
            faults.reached("pre_mkdir", self._folder(step))
            self._writer().start(self._folder(step), _stored(trees), texts)
        except (OSError, ValueError, RuntimeError, TimeoutError, StorageError) as error:
            raise self._failed(pending, error) from error
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
        return bool(agreement.of_primary(int(thread is not None and thread.is_alive())))

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
        restored: Restored | None
        if step is not None:
            faults.reached("in_restore", self._folder(step))
            restored = restore_step(self._root, step, abstract)
        else:
            faults.reached("in_restore", Path(self.directory))
            steps = [(self._root, number) for number in agreement.agreed_steps(self.steps())]
            restored, passed = restore_newest(steps, abstract)
            with self._storage():
                for newer in passed:
                    self._report_damaged(newer.step, newer.reasons, restored.step if restored else None)
        if restored is not None:
            self._current_step = restored.step
        return restored

    def go_back(self, step: int) -> list[str]:
        """Sets the steps after `step` aside, as folders `STEP.left`; see the contract."""
        self.wait()
        later = [other for other in agreement.agreed_steps(self.steps()) if other > step]
        self._current_step = step
        if self.read_only or not agreement.is_primary():
            return []
        with self._storage():
            return [self._root.set_aside(other, "left") for other in later]

    def wait(self) -> None:
        """Returns when no save is under way, a provisional one dropped; see the contract."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.decide(commit=False)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if pending is not None and not pending.is_committed:
            # Not saved after all: asking for the same step again must not be taken for done.
            self._current_step = None
        failure = self._failure
        if not isinstance(failure, LeaseLostError):
            self._failure = None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Waits, then releases threads; raises as `wait` does."""
        try:
            self.wait()
        finally:
            if self._store is not None:
                self._store.close()
                self._store = None

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """Has what the storage refuses be said as what it is: no damage, and no bug."""
        try:
            yield
        except (OSError, StorageError) as error:
            message = (
                f"the storage of the checkpoints in {self.directory} fails: {brief(error)}. Nothing was removed. Mend "
                "it (permissions, open files, mounts), and run the same command again"
            )
            raise CheckpointUnreadableError(message) from error

    def _writer(self) -> ArrayStore:
        if self.read_only:
            message = f"the checkpoints in {self.directory} were opened for reading only"
            raise CheckpointError(message)
        if self._store is None:
            self._store = ArrayStore(ITEMS, TEXTS, self.config.timeout_seconds)
        return self._store

    def _folder(self, step: int) -> Path:
        return Path(self.directory, str(step))

    def _make_again(self) -> None:
        """Makes the folder of checkpoints, if only that vanished; raises OSError where the whole run did."""
        # No parents: where a mount was lost, what is written under its name is lost once it is back.
        self.directory.mkdir()
        logger.warning("%s has vanished, with the checkpoints in it; it is made again", self.directory)

    def _snapshot(
        self,
        step: int,
        trees: Mapping[str, Mapping[str, jax.Array]],
        texts: Mapping[str, Any],
        started: float,
    ) -> Pending:
        """Starts the digests on the devices, before the caller may donate the arrays."""
        try:
            text_digests = {name: text_digest(value) for name, value in texts.items()}
        except TypeError as error:
            message = f"checkpoint {step}: data and meta must be JSON values: {error}"
            raise CheckpointError(message) from error
        digests = {item: {path: start_digest(leaf) for path, leaf in leaves.items()} for item, leaves in trees.items()}
        arrays = {
            item: {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()}
            for item, leaves in trees.items()
        }
        self._saves += 1
        return Pending(step, digests, arrays, text_digests, started)

    def _finish(self, pending: Pending) -> None:
        """Runs in the background: waits for the arrays and the word to commit, commits, deletes old steps, reports."""
        key = f"kanawa/checkpoint/{self._folder(pending.step)}/{self._saves}"
        try:
            faults.reached("mid_write", self._folder(pending.step))
            self._writer().wait()
            seconds = time.perf_counter() - pending.started
            if not pending.may_count():
                self._drop(pending, key)
                return
            # Arrays of all processes are on disk. Only the first one says that the step counts; the others wait for it
            # through the coordination service, since a collective here would meet those of the training thread.
            if agreement.is_primary():
                num_bytes = self._commit(pending)
                agreement.publish(key, "")
            else:
                num_bytes = 0
                outcome = agreement.await_outcome(key, self.config.timeout_seconds)
                if outcome:
                    raise OSError(outcome)  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - whatever failed in the background is raised at the next call
            if agreement.is_primary():
                # The service that takes the word may be what failed.
                with contextlib.suppress(RuntimeError):
                    agreement.publish(key, brief(error))
            self._failure = error if isinstance(error, LeaseLostError) else self._failed(pending, error)
            return
        self.on_event(
            "checkpoint_committed",
            {
                "step": pending.step,
                "path": str(self._folder(pending.step)),
                "blocking_seconds": pending.blocking_seconds,
                "seconds": seconds,
                "bytes": num_bytes,
            },
        )

    def _drop(self, pending: Pending, key: str) -> None:
        """Removes a step that nobody vouched for; to the disk it looks like a save that was never finished."""
        if agreement.is_primary():
            self._root.discard(pending.step)
            agreement.publish(key, "dropped")
        self.on_event("checkpoint_dropped", {"step": pending.step, "path": str(self._folder(pending.step))})

    def _commit(self, pending: Pending) -> int:
        """Makes the step count; returns its bytes."""
        # Orbax renames its folder without syncing: after a power cut the name could be there and the bytes not.
        faults.reached("pre_manifest", self._folder(pending.step))
        num_bytes = sync_tree(self._folder(pending.step))
        # And its name: the folder of all steps is another one.
        sync_directory(Path(self.directory))
        with self._root.guarded():
            write_commit(self._folder(pending.step), Manifest(pending.step, pending.entries(), pending.texts))
        faults.reached("post_commit", self._folder(pending.step))
        self._delete_old()
        return num_bytes

    def _delete_old(self) -> None:
        """Makes room. That it can't is said, and no failure: the new step counts by now."""
        try:
            faults.reached("in_gc", self.directory)
            with self._root.guarded():
                layout.remove_unfinished(self.directory)
            steps = layout.committed_steps(self.directory)
            for step in layout.steps_to_delete(steps, self.keep_last_n, self.keep_every_n_steps):
                with self._root.guarded():
                    layout.delete_step(self.directory, step)
        except (OSError, StorageError) as error:
            logger.warning("old checkpoints in %s can't be deleted: %s", self.directory, brief(error))

    def _failed(self, pending: Pending, error: BaseException) -> CheckpointSaveError:
        """Reports a failed save, frees its space and returns the error to raise."""
        # Not saved after all: asking for the same step again must not be taken for done.
        self._current_step = None
        kept = []
        try:
            if agreement.is_primary():
                self._root.discard(pending.step)
            kept = layout.committed_steps(self.directory)
        except (OSError, StorageError, LeaseLostError) as also:
            # On the thread that saves nobody would see this one; the first error says more.
            logger.warning("%s can't be tidied up: %s", self.directory, brief(also))
        intact = f"older checkpoints are intact: {kept}" if kept else "there is no older checkpoint"
        message = (
            f"checkpoint {pending.step} could not be saved to {self._folder(pending.step)}: {brief(error)}; "
            f"{intact}. "
            "Free space or fix permissions; the next save starts afresh"
        )
        logger.error("%s", message)
        self.on_event(
            "checkpoint_failed",
            {"step": pending.step, "path": str(self._folder(pending.step)), "error": brief(error)},
        )
        failure = CheckpointSaveError(message)
        failure.__cause__ = error
        return failure

    def _report_damaged(self, step: int, reasons: tuple[str, ...], used: int | None) -> None:
        """Explains a fallback and moves the damaged step out of the way of the next save."""
        logger.warning("checkpoint %d is damaged, using %s instead: %s", step, used, "; ".join(reasons))
        self.on_event("checkpoint_damaged", {"step": step, "reasons": list(reasons), "used": used})
        if used is not None and not self.read_only and agreement.is_primary():
            self._root.set_aside(step, "damaged")


def _stored(trees: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, dict[str, jax.Array]]:
    """Returns the trees without empty arrays, which orbax refuses and the manifest alone describes."""
    return {item: {path: leaf for path, leaf in leaves.items() if leaf.size} for item, leaves in trees.items()}
