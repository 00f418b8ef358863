"""Steps in a folder: `STEP/COMMIT.json` makes one count, and renaming takes it away."""

import contextlib
import logging
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
from kanawa.contracts import Lease, LeaseLostError
from kanawa.guarded_read import check_readable

from kanawa_runtime.checkpoint import layout
from kanawa_runtime.checkpoint.array_store import read_arrays, read_text
from kanawa_runtime.checkpoint.manifest import Manifest, is_committed, read_manifest, write_commit
from kanawa_runtime.checkpoint.roots.root import Root
from kanawa_runtime.storage.durable import sync_directory, write_durable
from kanawa_runtime.storage.lease import StorageLease
from kanawa_runtime.storage.local import LocalStorage

logger = logging.getLogger(__name__)

#: In a quick place: who opened it last.
HOLDER = ".holder"


class DirectoryRoot(Root):
    """A folder of step folders, also such as orbax filled. Nothing in it is renamed or committed without the lease."""

    def __init__(
        self, storage: LocalStorage, lease: Lease | None = None, *, is_private: bool = False, name: str = ""
    ) -> None:
        super().__init__(storage, is_private=is_private, name=name)
        self.folder = storage.root
        self._lease = lease if isinstance(lease, StorageLease) else None
        self._synced = storage.survives_power_loss
        self._claim = ""

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    def open(self, recorded: Collection[int]) -> dict[int, str]:
        """Sets aside what has lost its commit file, and removes what was never finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.is_private:
            with self._storage_alone():
                self._claim = uuid.uuid4().hex
                write_durable(self.folder / HOLDER, self._claim.encode(), synced=False)
        with self.guarded():
            lost = layout.lost_commits(self.folder, recorded)
            removed = layout.remove_unfinished(self.folder)
        if removed:
            logger.info("removed unfinished checkpoints: %s", ", ".join(removed))
        return {step: str(place) for step, place in lost.items()}

    def steps(self) -> list[int]:
        """Returns the steps with a commit file."""
        return layout.committed_steps(self.folder)

    def manifest(self, step: int) -> Manifest:
        """Returns the manifest that the step's commit file names."""
        return read_manifest(self.folder / str(step))

    def make_room(self, step: int) -> None:
        """Sets aside what has the step's name, for a run that fell back reaches a number again."""
        if not self.folder.is_dir():
            # No parents: where a mount was lost, what is written under its name is lost once it is back.
            self.folder.mkdir(parents=self.is_private)
            if not self.is_private:
                logger.warning("%s has vanished, with the checkpoints in it; it is made again", self.folder)
        with self.guarded():
            if (self.folder / str(step)).exists():
                layout.set_aside_replaced(self.folder, step)

    def begin(self, step: int) -> None:
        """Makes the step's folder."""
        self.make_room(step)
        # Into a quick place a suspended process that wakes up may write, and make it again: its files have names
        # of their own, and what the manifest doesn't name is of no account.
        (self.folder / str(step)).mkdir(exist_ok=self.is_private)

    def tidy(self) -> None:
        """Removes leftovers of saves and deletions, but no folder that may be of a save under way."""
        with self.guarded():
            layout.remove_leftovers(self.folder)

    def commit(self, manifest: Manifest) -> None:
        """Writes manifest and commit file while no other process can take the lease."""
        folder = self.folder / str(manifest.step)
        with self.guarded():
            if self._synced:
                sync_directory(folder)
                # The folder's own name as well: its parent may never have been synced since it was made.
                sync_directory(self.folder)
            write_commit(folder, manifest)

    def discard(self, step: int) -> None:
        """Removes the step's folder, unless it counts."""
        with self.guarded():
            if not is_committed(self.folder / str(step)):
                # By name: a manifest may be there already, and what has one is never taken for unfinished.
                shutil.rmtree(self.folder / str(step), ignore_errors=True)
            layout.remove_leftovers(self.folder)

    def delete(self, step: int) -> None:
        """Renames, then removes."""
        with self.guarded():
            layout.delete_step(self.folder, step)

    def set_aside(self, step: int, reason: str) -> str:
        """Renames to `STEP.REASON`."""
        with self.guarded():
            return str(layout.set_aside(self.folder, step, reason))

    def arrays(self, step: int, manifest: Manifest, item: str, leaves: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns arrays of one item, in either format; raises UnreadableFileError for a pipe or a device among it."""
        self._check_kinds(step, item)
        if manifest.is_sharded:
            return super().arrays(step, manifest, item, leaves)
        return read_arrays(self.folder / str(step), item, leaves)

    def text(self, step: int, manifest: Manifest, name: str) -> Any:
        """Returns one of the JSON items, in either format."""
        self._check_kinds(step, name)
        if manifest.is_sharded:
            return super().text(step, manifest, name)
        return read_text(self.folder / str(step), name)

    def _check_kinds(self, step: int, item: str) -> None:
        """Looks at the files of an item, which another library opens: of a pipe it would wait for ever."""
        for path in (self.folder / str(step) / item).rglob("*"):
            if not path.is_dir():
                check_readable(path)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Proves the lease, and keeps others from taking it inside. Raises LeaseLostError.

        A quick place has no lease: the holder of the run's lease opens it, and the last to open it owns it.
        """
        if self._lease is not None:
            with self._lease.guarded():
                yield
        elif self._claim:
            with self._storage_alone():
                self._check_claim()
                yield
        else:
            yield

    def _storage_alone(self) -> contextlib.AbstractContextManager[None]:
        assert isinstance(self.storage, LocalStorage)  # noqa: S101 - by the constructor
        return self.storage.alone()

    def _check_claim(self) -> None:
        try:
            holder = (self.folder / HOLDER).read_text()
        except FileNotFoundError:
            # Removed with all else, as by a cleared disk: a new owner would have written its own.
            write_durable(self.folder / HOLDER, self._claim.encode(), synced=False)
            return
        if holder != self._claim:
            message = (
                f"{self.where} was taken over by another attempt of this run, which holds its lease; this process was "
                "suspended, or lost it, and writes nothing more"
            )
            raise LeaseLostError(message)
