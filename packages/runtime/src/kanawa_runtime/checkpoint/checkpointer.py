"""Asynchronous checkpoints that are restored bit for bit or reported as damaged, never silently wrong."""

from pathlib import Path
from typing import Any

from kanawa.contracts import StorageError
from kanawa.local_path import local_path

from kanawa_runtime import faults
from kanawa_runtime.checkpoint import agreement
from kanawa_runtime.checkpoint.array_store import ArrayStore
from kanawa_runtime.checkpoint.background import ELSEWHERE, BackgroundCheckpointer, Trees
from kanawa_runtime.checkpoint.pending import Pending, Written
from kanawa_runtime.storage.durable import sync_tree

ITEMS = ("params", "state", "opt")
TEXTS = ("data", "meta")


class OrbaxCheckpointer(BackgroundCheckpointer):
    """Writes with orbax in the background, and adds what it lacks: digests of the arrays, a commit file, repair.

    The directory is a folder that all processes share. Process 0 writes the shared files.
    """

    def __init__(self, cfg: Any, *, directory: Path | str, **runtime: Any) -> None:
        self._store: ArrayStore | None = None
        super().__init__(cfg, directory=local_path(directory, "the orbax checkpointer's directory"), **runtime)

    def _start(self, pending: Pending, trees: Trees) -> None:
        folder = Path(self.directory, str(pending.step))
        problem: Exception | None = None
        try:
            if self._store is None:
                self._store = ArrayStore(ITEMS, TEXTS, self.config.timeout_seconds)
            if agreement.is_primary():
                faults.reached("pre_mkdir", folder)
                self._root.make_room(pending.step)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must hear that this process stays away
            problem = error
        # Orbax's processes wait for each other: one that stayed away would hold all of them for many minutes.
        if not agreement.all_agree(problem is None) or self._store is None:
            raise problem or StorageError(f"{ELSEWHERE} a save in {self.directory}")
        # Without empty arrays, which orbax refuses and the manifest alone describes.
        stored = {item: {path: leaf for path, leaf in leaves.items() if leaf.size} for item, leaves in trees.items()}
        self._store.start(folder, stored, pending.values)

    def _finish_own(self, pending: Pending) -> Written:
        folder = Path(self.directory, str(pending.step))
        assert self._store is not None  # noqa: S101 - it was started
        try:
            faults.reached("mid_write", folder)
        finally:
            # In any case: what goes wrong has the folder removed, and orbax must not be writing to it then.
            self._store.wait()
        # Orbax renames its folder without syncing: after a power cut the name could be there and the bytes not.
        return Written(num_bytes=sync_tree(folder) if agreement.is_primary() else 0)

    def _all_have_begun(self) -> None:
        if self._store is not None:
            self._store.all_have_begun()

    def _abandon(self, *, primary_has_begun: bool) -> None:
        if self._store is not None:
            self._store.abandon(has_folder=primary_has_begun)

    def _release(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
