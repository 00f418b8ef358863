"""What a checkpointer asks of a place where steps lie."""

import abc
import hashlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from kanawa.contracts import ObjectMissingError, Storage

from kanawa_runtime.checkpoint.errors import CheckpointDamagedError
from kanawa_runtime.checkpoint.manifest import Manifest
from kanawa_runtime.checkpoint.pieces import Part, decoded_index, read_arrays

_READERS = 8


class Root(abc.ABC):
    """Steps at one place. A step counts from `commit` on, and not before, whatever happens in between.

    `is_private`: each process has one of its own, which holds what that process wrote; else all share it.
    """

    def __init__(self, storage: Storage, *, is_private: bool = False, name: str = "") -> None:
        self.storage = storage
        self.is_private = is_private
        self.name = name

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The place, as a person would look for it."""

    def location(self, step: int) -> str:
        """Returns where a step lies."""
        return f"{self.where}/{step}"

    @abc.abstractmethod
    def open(self, recorded: Collection[int]) -> dict[int, str]:
        """Makes the place ready to be written to, and removes what was never finished.

        Returns where steps are now that were committed once, `recorded` ones among them, and can't count any more.
        """

    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Returns the committed steps, oldest first."""

    @abc.abstractmethod
    def manifest(self, step: int) -> Manifest:
        """Returns a committed step's manifest; raises CheckpointDamagedError, CheckpointUnreadableError."""

    @abc.abstractmethod
    def make_room(self, step: int) -> None:
        """Has nothing stand where a step is about to be saved. The primary process calls."""

    def begin(self, step: int) -> None:
        """Makes room for a step, and what its parts are written into. The primary process calls."""
        self.make_room(step)

    def tidy(self) -> None:
        """Removes leftovers once a step is committed; other processes may begin the next."""
        return

    def write(self, step: int, name: str, data: Any) -> None:
        """Writes an object of a step, durably; any process calls."""
        self.storage.write(f"{step}/{name}", data)

    @abc.abstractmethod
    def commit(self, manifest: Manifest) -> None:
        """Lets the step count, all its objects being there. Raises StorageError, LeaseLostError."""

    @abc.abstractmethod
    def discard(self, step: int) -> None:
        """Removes a step that was begun and not committed; what it can't remove, `open` will."""

    @abc.abstractmethod
    def delete(self, step: int) -> None:
        """Removes a committed step: it doesn't count any more before the first byte goes."""

    @abc.abstractmethod
    def set_aside(self, step: int, reason: str) -> str:
        """Keeps a committed step from counting, and keeps its bytes; returns where."""

    def arrays(self, step: int, manifest: Manifest, item: str, leaves: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns arrays of one item in the shardings of the abstract `leaves`."""
        return read_arrays(
            self.parts(step, manifest),
            item,
            leaves,
            lambda name, start, size: self.storage.read(f"{step}/{name}", start, size),
        )

    def parts(self, step: int, manifest: Manifest) -> list[Part]:
        """Returns the indexes of all processes that wrote; on a private place those that are there."""

        def read(entry: Any) -> Part | None:
            try:
                data = self.storage.read(f"{step}/{entry.name}")
            except ObjectMissingError:
                if self.is_private:
                    return None
                raise
            actual = hashlib.sha256(data).hexdigest()
            if actual != entry.sha256:
                message = f"{self.location(step)}/{entry.name} has SHA-256 {actual}, expected {entry.sha256}"
                raise CheckpointDamagedError(message)
            return decoded_index(data)

        with ThreadPoolExecutor(_READERS, thread_name_prefix="part") as pool:
            return [part for part in pool.map(read, manifest.parts) if part is not None]

    def text(self, step: int, manifest: Manifest, name: str) -> Any:
        """Returns one of the JSON items."""
        del step
        return manifest.values.get(name)
