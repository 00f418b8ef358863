"""Checkpoints in a folder or an object store; each process writes what it holds."""

from kanawa_runtime import faults
from kanawa_runtime.checkpoint import agreement
from kanawa_runtime.checkpoint.background import BackgroundCheckpointer, Trees
from kanawa_runtime.checkpoint.pending import Pending, Written
from kanawa_runtime.checkpoint.pieces import snapshot


class ShardedCheckpointer(BackgroundCheckpointer):
    """Writes pieces of arrays in volumes, an index a process, and a manifest whose commit makes the step count.

    The directory is a folder that all processes share, or an address.
    """

    def _start(self, pending: Pending, trees: Trees) -> None:
        pending.pieces = snapshot(trees)
        if agreement.is_primary():
            faults.reached("pre_mkdir", self._folder(pending.step))
            self._root.begin(pending.step)

    def _finish_own(self, pending: Pending) -> Written:
        return self._write_part(pending, self._root)

    def _release(self) -> None:
        self._root.storage.close()
