"""Asynchronous checkpoints that are restored bit for bit or reported as damaged, never silently wrong."""

from pathlib import Path
from typing import Any

from kanawa.contracts import StorageError, is_address
from kanawa.errors import UsageError

from kanawa_runtime import faults
from kanawa_runtime.checkpoint import agreement
from kanawa_runtime.checkpoint.array_store import ArrayStore, check_room, make_folders
from kanawa_runtime.checkpoint.background import ELSEWHERE, BackgroundCheckpointer, Trees
from kanawa_runtime.checkpoint.manifest import brief
from kanawa_runtime.checkpoint.pending import Pending, Written
from kanawa_runtime.storage.durable import sync_tree


class OrbaxCheckpointer(BackgroundCheckpointer):
    """Writes with orbax in the background, and adds what it lacks: digests of the arrays, a commit file, repair.

    The directory is a folder that all processes share; process 0 writes the shared files. Reading takes any place.
    """

    def __init__(self, cfg: Any, *, directory: Path | str, **runtime: Any) -> None:
        self._store: ArrayStore | None = None
        if is_address(directory) and not runtime.get("read_only", False):
            message = (
                f"the checkpointer orbax writes to folders, and {directory} is an address; choose one that writes "
                "there: --set checkpointer=sharded, or checkpointer=auto"
            )
            raise UsageError(message)
        super().__init__(cfg, directory=directory, **runtime)

    def _start(self, pending: Pending, trees: Trees) -> None:
        folder = Path(self.directory, str(pending.step))
        problem: Exception | None = None
        try:
            if self._store is None:
                self._store = ArrayStore(self.config.timeout_seconds)
            if agreement.is_primary():
                faults.reached("pre_mkdir", folder)
                self._root.begin(pending.step)
                make_folders(folder, trees, pending.values)
            check_room(Path(self.directory), trees)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must hear that this process stays away
            problem = error
        # No process may write before the folder is there.
        if not agreement.all_agree(problem is None) or self._store is None:
            raise problem or StorageError(f"{ELSEWHERE} begin a save in {self.directory}")
        # Without empty arrays, which orbax refuses and the manifest alone describes.
        self._store.start(folder, {item: {p: x for p, x in leaves.items() if x.size} for item, leaves in trees.items()})

    def _finish_own(self, pending: Pending) -> Written:
        folder = Path(self.directory, str(pending.step))
        assert self._store is not None  # noqa: S101 - it was started
        error = ""
        try:
            try:
                faults.reached("mid_write", folder)
            finally:
                # In any case: what goes wrong has the folder removed, and orbax must not be writing to it then.
                self._store.wait()
        except Exception as problem:
            error = brief(problem)
            raise
        finally:
            # Merging takes what all processes have written; one that failed would be waited for in vain.
            others = self._exchange(pending, "arrays", error)
        if any(others):
            message = f"{ELSEWHERE} write its part of a save in {self.directory}"
            raise StorageError(message)
        if not agreement.is_primary():
            return Written()
        self._store.finalize(folder, pending.values)
        return Written(num_bytes=sync_tree(folder))

    def _abandon(self) -> None:
        if self._store is not None:
            self._store.wait()

    def _release(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
