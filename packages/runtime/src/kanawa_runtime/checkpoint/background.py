"""What every checkpointer of ours does alike: it writes on a thread of its own, and counts a step once all is there."""

import abc
import contextlib
import dataclasses
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
    LeaseLostError,
    Restored,
    StorageError,
    StorageRefusedError,
)

from kanawa_runtime import faults
from kanawa_runtime.checkpoint import agreement, layout
from kanawa_runtime.checkpoint.errors import CheckpointUnreadableError
from kanawa_runtime.checkpoint.manifest import COMMIT, Manifest, PartEntry, brief
from kanawa_runtime.checkpoint.pending import Pending, Written
from kanawa_runtime.checkpoint.pieces import snapshot, written_part
from kanawa_runtime.checkpoint.restore import PassedOver, restore_newest, restore_step
from kanawa_runtime.checkpoint.roots.root import Root
from kanawa_runtime.checkpoint.structure import check_savable, flatten
from kanawa_runtime.checkpoint.tiers import Tier, open_root, open_tier

logger = logging.getLogger(__name__)

Trees = Mapping[str, Mapping[str, jax.Array]]
#: Begins the error of a process that was stopped by the failure of another one.
ELSEWHERE = "another process could not"


class BackgroundCheckpointer(Checkpointer):
    """Saves to the run's own place, and to quicker ones beside it, in the background.

    A failed save raises CheckpointSaveError at the next `save` or at `wait`, and leaves older steps as they were; one
    that a quick place refuses is an event. Raises LeaseLostError once another process has taken the run over.
    Implementations say how arrays get to the run's own place.
    """

    class Config(Checkpointer.Config):
        PLACEMENT = ("timeout_seconds", "patience_seconds", "volume_bytes", "tiers")

        timeout_seconds: Size = 600
        patience_seconds: NonNegative = 10.0
        volume_bytes: Size = 128 * 2**20
        tiers: tuple[Tier, ...] = ()

    def __init__(self, cfg: Any, **runtime: Any) -> None:
        super().__init__(cfg, **runtime)
        self._root = open_root(self.directory, self.lease)
        # A reader restores what the run has committed: what lies in some host's memory is the run's own affair.
        tiers = () if self.read_only else cfg.tiers
        self._tiers = [(tier, open_tier(tier, self.directory, self.lease)) for tier in tiers]
        self._thread: threading.Thread | None = None
        self._pending: Pending | None = None
        self._failure: CheckpointError | LeaseLostError | None = None
        self._current_step: int | None = None
        self._token: int | None = None
        self._saves = 0
        #: Until a save is late or fails, and again from the next one that counts.
        self._is_patient = True
        if not self.read_only:
            self._open()

    # --- how arrays get to the run's own place -----------------------------------------------------------------

    @abc.abstractmethod
    def _start(self, pending: Pending, trees: Trees) -> None:
        """Begins a save at the run's own place; the arrays may be donated afterwards. Raises what the storage does."""

    @abc.abstractmethod
    def _finish_own(self, pending: Pending) -> Written:
        """Returns what this process has written at the run's own place, all of it durable; on the thread that saves."""

    def _abandon(self) -> None:
        """Returns once this process writes nothing more of a save that another one refused; raises what went wrong."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Releases threads and connections."""

    # --- the contract ------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Returns the steps committed at the run's own place. Raises CheckpointUnreadableError where that fails."""
        with self._storage():
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
        if not self.due(step) if quick else step == self._current_step:
            return False
        if self.read_only:
            message = f"the checkpoints in {self.directory} were opened for reading only"
            raise CheckpointError(message)
        trees = {"params": flatten(params), "state": flatten(state or {}), "opt": dict(opt)}
        for item, leaves in trees.items():
            check_savable(item, leaves)
        pending = self._begun(step, trees, {"data": data, "meta": dict(meta or {})}, started, quick=quick)
        self._begin(pending, trees)
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
            # Once: while a storage is away every further wait would be in vain.
            thread.join(self.config.patience_seconds if self._is_patient else 0.0)
            self._is_patient &= not thread.is_alive()
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
        faults.reached("in_restore", self._folder() if step is None else self._folder(step))
        restored: Restored | None
        with self._storage():
            if step is not None:
                restored = restore_step(self._root, step, abstract)
            else:
                restored, passed = restore_newest(self._candidates(), abstract)
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
        with self._storage():
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
        """Waits, then releases threads and connections; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._release()

    # --- opening and reading -----------------------------------------------------------------------------------

    def _open(self) -> None:
        with self._storage():
            for _, tier in self._tiers:
                tier.open(())
            if not agreement.is_primary():
                return
            recorded = layout.recorded_commits(self.directory.parent) if isinstance(self.directory, Path) else ()
            lost = self._root.open(recorded)
        for step, place in lost.items():
            reason = f"{COMMIT} is missing, although the step was committed; it is set aside as {place}"
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
    def _storage(self) -> Iterator[None]:
        """Turns errors of the storage into CheckpointUnreadableError: neither damage nor a bug."""
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

    def _begun(self, step: int, trees: Trees, values: dict[str, Any], started: float, *, quick: bool) -> Pending:
        """Starts the digests on the devices, before the caller may donate the arrays."""
        if self._token is None:
            self._token = agreement.of_primary(0 if self.lease is None else self.lease.token)
        roots = [root for tier, root in self._tiers if step % tier.every_steps == 0]
        number = self._saves + 1
        pending = Pending.of(
            step,
            trees,
            values,
            started,
            roots=roots if quick else [*roots, self._root],
            prefix=f"t{self._token}-{number}.p{jax.process_index():05d}",
            key=f"kanawa/checkpoint/{self._token}/{number}",
        )
        self._saves = number
        return pending

    def _begin(self, pending: Pending, trees: Trees) -> None:
        """Begins at each place, and takes the copies; an error at one must not prevent the step at the others.

        Nothing is raised: the other processes have begun as well, and get the error before the commit.
        """
        for number, root in enumerate(pending.roots):
            try:
                if not root.is_private:
                    self._start(pending, trees)
                    continue
                root.begin(pending.step)
                pending.pieces = pending.pieces or snapshot(trees)
            except (OSError, ValueError, RuntimeError, MemoryError, StorageError, LeaseLostError) as error:
                pending.refused[number] = brief(error)

    def _finish(self, pending: Pending) -> None:
        """Runs in the background: writes, waits for the word to commit, commits, deletes old steps, reports."""
        try:
            self._hear_refusals(pending)
            written = [self._written(pending, number) for number in range(len(pending.roots))]
            seconds = time.perf_counter() - pending.started
            pending.pieces = []
            if not pending.may_count():
                self._drop(pending)
                return
            parts = [[part.entry and dataclasses.astuple(part.entry), part.error] for part in written]
            # Of all processes: a step that one of them could not write is no step.
            everyone = [json.loads(text) for text in self._exchange(pending, "parts", json.dumps(parts))]
            lost: LeaseLostError | None = None
            for number, part in enumerate(written):
                answers = [answer[number] for answer in everyone]
                # The reason of one that failed says more than that of those which only heard of it.
                error = min((error for _, error in answers if error), key=lambda text: ELSEWHERE in text, default="")
                entries = tuple(PartEntry(*entry) for entry, _ in answers if entry)
                facts = {"bytes": part.num_bytes, "seconds": seconds}
                lost = self._settle(pending, number, entries, error, facts) or lost
            if lost is not None:
                raise lost
        except LeaseLostError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - whatever failed in the background is raised at the next call
            if not isinstance(error, CheckpointSaveError):
                self._discard(pending)
            self._failure = self._loss_of_lease() or self._failed(pending, error)
        finally:
            if agreement.is_primary():
                with contextlib.suppress(RuntimeError):
                    agreement.forget(f"kanawa/checkpoint/{self._token}/{self._saves - 1}")

    def _hear_refusals(self, pending: Pending) -> None:
        """Waits until each process has begun: what one wrote before the primary makes room would go with the old."""
        refused = {str(number): error for number, error in pending.refused.items()}
        shared = {str(number) for number, root in enumerate(pending.roots) if not root.is_private}
        answers: list[dict[str, str]] = []
        try:
            answers = [json.loads(text) for text in self._exchange(pending, "begun", json.dumps(refused))]
        finally:
            has_begun = not shared & refused.keys()
            if has_begun and (not answers or any(shared & answer.keys() for answer in answers)):
                # What is written still would come back after the folder is removed.
                with contextlib.suppress(Exception):
                    self._abandon()
        for answer in answers:
            for number, error in answer.items():
                pending.refused.setdefault(int(number), error)

    def _written(self, pending: Pending, number: int) -> Written:
        """Writes this process's part to a place; an error is returned, since other processes wait for it."""
        if number in pending.refused:
            return Written(error=pending.refused[number])
        root = pending.roots[number]
        try:
            if not root.is_private:
                return self._finish_own(pending)
            return self._write_part(pending, root)
        except Exception as error:  # noqa: BLE001 - readers of damaged storage and orbax raise anything
            return Written(error=brief(error))

    def _write_part(self, pending: Pending, root: Root) -> Written:
        """Writes this process's pieces as volumes and their index; returns the index's entry."""

        def write(name: str, data: Any) -> None:
            root.write(pending.step, name, data)
            faults.reached("mid_write", self._folder(pending.step, name))

        entry, num_bytes = written_part(pending.pieces, pending.prefix, self.config.volume_bytes, write)
        return Written(entry, num_bytes=num_bytes)

    def _exchange(self, pending: Pending, what: str, text: str) -> list[str]:
        # No collective on devices: here it would meet those of the training thread.
        return agreement.gathered(f"{pending.key}/{what}", text, self.config.timeout_seconds)

    def _settle(
        self, pending: Pending, number: int, parts: tuple[PartEntry, ...], error: str, facts: dict[str, Any]
    ) -> LeaseLostError | None:
        """Commits a step at one place, or reports why not. Raises what failed at the run's own.

        Returns the error if a quick place belongs to another attempt by now: the run's own follows, where others wait.
        """
        root, lost = pending.roots[number], None
        if root.is_private or agreement.is_primary():
            try:
                if not error:
                    self._commit(pending, root, parts)
                    self._delete_old(root)
            except LeaseLostError as problem:
                lost, error = problem, brief(problem)
            except (OSError, StorageError) as problem:
                error = brief(problem)
            if error and lost is None:
                # Before the others hear of it, who may begin the next save at once.
                taken_over = self._discard(pending, [root])
                lost = taken_over if root.is_private else None
        if not root.is_private:
            # The primary process alone knows whether the step counts.
            error = self._exchange(pending, "outcome", error)[0]
            if lost is not None:
                raise lost
        place = root.location(pending.step)
        if not error:
            fields = {"step": pending.step, "path": place, "blocking_seconds": pending.blocking_seconds} | facts
            if root.is_private:
                self.on_event("tier_committed", fields | {"tier": root.name})
            else:
                self._is_patient = True
                self.on_event("checkpoint_committed", fields)
        elif root.is_private:
            logger.warning("checkpoint %d could not be saved to %s: %s", pending.step, place, error)
            self.on_event("checkpoint_failed", {"step": pending.step, "path": place, "error": error, "tier": root.name})
        else:
            raise CheckpointSaveError(error)
        return lost

    def _commit(self, pending: Pending, root: Root, parts: tuple[PartEntry, ...]) -> None:
        faults.reached("pre_manifest", self._folder(pending.step))
        entries = pending.entries()
        root.commit(Manifest(pending.step, entries, pending.texts, parts, pending.values, self._token or 0))
        faults.reached("post_commit", self._folder(pending.step))

    def _delete_old(self, root: Root) -> None:
        """Deletes old steps. An error is logged and no failure: the new step counts by now."""
        keep, every = self.keep_last_n, self.keep_every_n_steps
        for tier, place in self._tiers:
            if place is root:
                keep, every = tier.keep_last, None
        try:
            faults.reached("in_gc", self._folder())
            root.tidy()
            for step in layout.steps_to_delete(root.steps(), keep, every):
                root.delete(step)
        except (OSError, StorageError) as error:
            logger.warning("old checkpoints in %s can't be deleted: %s", root.where, brief(error))

    def _drop(self, pending: Pending) -> None:
        """Removes an uncommitted step; to a reader it looks like an unfinished save."""
        self._discard(pending)
        if self._root in pending.roots:
            fields = {"step": pending.step, "path": self._root.location(pending.step)}
            self.on_event("checkpoint_dropped", fields)

    def _discard(self, pending: Pending, roots: list[Root] | None = None) -> LeaseLostError | None:
        """Removes what was written; returns the error if a place belongs to another attempt by now."""
        lost = None
        for root in pending.roots if roots is None else roots:
            if root.is_private or agreement.is_primary():
                try:
                    root.discard(pending.step)
                except (OSError, StorageError, LeaseLostError) as error:
                    lost = error if isinstance(error, LeaseLostError) else lost
                    # Raised on the saving thread it would be lost; the first error says more.
                    logger.warning("%s can't be tidied up: %s", root.where, brief(error))
        return lost

    def _loss_of_lease(self) -> LeaseLostError | None:
        """Returns why nothing may be written any more: the new holder removes what this process was writing."""
        try:
            if self.lease is not None:
                self.lease.check()
        except LeaseLostError as lost:
            return lost
        except StorageError:
            pass  # what failed says more
        return None

    def _advice(self, error: BaseException) -> str:
        """Returns what to do about a save that failed."""
        if isinstance(self.directory, Path) and not self.directory.parent.is_dir():
            return f"The run's folder {self.directory.parent} is gone: put it back, or start again in another one"
        if isinstance(error, StorageRefusedError):
            return "Fix the rights or the address"
        if not isinstance(self.directory, Path):
            return "Training goes on, and saves again once the storage answers"
        return "Free space or fix permissions"

    def _failed(self, pending: Pending, error: BaseException) -> CheckpointSaveError:
        """Reports a failed save and returns the error to raise."""
        # Not saved after all: asking for the same step again must not be taken for done.
        self._current_step = None
        self._is_patient = False
        kept = []
        with contextlib.suppress(CheckpointUnreadableError):
            kept = self.steps()
        reason = str(error) if isinstance(error, CheckpointSaveError) else brief(error)
        place = self._root.location(pending.step)
        intact = f"older checkpoints are intact: {kept}" if kept else "there is no older checkpoint"
        message = (
            f"checkpoint {pending.step} could not be saved to {place}: {reason}; {intact}. "
            f"{self._advice(error)}; the next save starts afresh"
        )
        logger.error("%s", message)
        self.on_event("checkpoint_failed", {"step": pending.step, "path": place, "error": reason})
        failure = CheckpointSaveError(message)
        failure.__cause__ = error
        return failure
