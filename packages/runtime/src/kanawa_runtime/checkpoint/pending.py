"""A save on its way to its places."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.contracts import CheckpointError

from kanawa_runtime.checkpoint.digest import digest_text, start_digest
from kanawa_runtime.checkpoint.manifest import ArrayEntry, PartEntry, text_digest
from kanawa_runtime.checkpoint.pieces import HostPiece
from kanawa_runtime.checkpoint.roots.root import Root


@dataclasses.dataclass(frozen=True)
class Written:
    """What one process wrote of a step to a place: its index, where it has one, or what went wrong."""

    entry: PartEntry | None = None
    error: str = ""
    num_bytes: int = 0


@dataclasses.dataclass
class Pending:
    """What of a save is known before it is written: digests under way on the devices, shapes, the JSON items.

    `roots` are the places that get it, quick ones first; `refused` says, by their number, which can't. `pieces` are
    this process's arrays in host memory. `decided` is set once the step may count, or never will.
    """

    step: int
    digests: dict[str, dict[str, jax.Array]]
    arrays: dict[str, dict[str, jax.ShapeDtypeStruct]]
    values: dict[str, Any]
    texts: dict[str, str]
    started: float
    roots: list[Root]
    prefix: str
    key: str
    pieces: list[HostPiece] = dataclasses.field(default_factory=list)
    refused: dict[int, str] = dataclasses.field(default_factory=dict)
    blocking_seconds: float = 0.0
    is_committed: bool = False
    decided: threading.Event = dataclasses.field(default_factory=threading.Event)

    @classmethod
    def of(
        cls,
        step: int,
        trees: Mapping[str, Mapping[str, jax.Array]],
        values: dict[str, Any],
        started: float,
        **where: Any,
    ) -> "Pending":
        """Starts the digests of `trees`; raises CheckpointError for `values` that are not JSON."""
        try:
            texts = {name: text_digest(value) for name, value in values.items()}
        except TypeError as error:
            message = f"checkpoint {step}: data and meta must be JSON values: {error}"
            raise CheckpointError(message) from error
        digests = {item: {path: start_digest(leaf) for path, leaf in leaves.items()} for item, leaves in trees.items()}
        arrays = {
            item: {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()}
            for item, leaves in trees.items()
        }
        return cls(step, digests, arrays, values, texts, started, **where)

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
