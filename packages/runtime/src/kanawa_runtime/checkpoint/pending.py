"""A save on its way to its places."""

import dataclasses
import threading

import jax
import jax.numpy as jnp

from kanawa_runtime.checkpoint.digest import digest_text
from kanawa_runtime.checkpoint.manifest import ArrayEntry


@dataclasses.dataclass
class Pending:
    """What of a save is known before it is written: digests under way on the devices, shapes, the JSON items' digests.

    `decided` is set once the step may count, or never will.
    """

    step: int
    digests: dict[str, dict[str, jax.Array]]
    arrays: dict[str, dict[str, jax.ShapeDtypeStruct]]
    texts: dict[str, str]
    started: float
    blocking_seconds: float = 0.0
    is_committed: bool = False
    decided: threading.Event = dataclasses.field(default_factory=threading.Event)

    def decide(self, *, commit: bool) -> None:
        """Says once whether the step may count; the thread that saves waits for it."""
        if not self.decided.is_set():
            self.is_committed = commit
            self.decided.set()

    def may_count(self) -> bool:
        """Waits for the word to commit, and returns it; no, where the program ends without one."""
        while not self.decided.wait(1.0):
            if not threading.main_thread().is_alive():
                # The interpreter waits for this thread, which would wait for ever.
                self.decide(commit=False)
        return self.is_committed

    def entries(self) -> dict[str, dict[str, ArrayEntry]]:
        """Returns the manifest's entries; waits for the digests."""
        return {
            item: {
                path: ArrayEntry(tuple(leaf.shape), jnp.dtype(leaf.dtype).name, digest_text(self.digests[item][path]))
                for path, leaf in leaves.items()
            }
            for item, leaves in self.arrays.items()
        }
