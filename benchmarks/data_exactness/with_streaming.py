"""MosaicML streaming in the drill: streams in their natural shares, shuffled, its elastic resumption; it doesn't pack.

A host is a node of one rank, told by the environment, in one process one after the other. `num_canonical_nodes` is 24,
which every number of hosts divides: its way to the same order on any of them. The state is the epoch and the number of
samples, as its own data loader saves it. Weights hold for an epoch and resample the streams, so that changing them
inside one isn't expressible.
"""

import contextlib
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from drill import GLOBAL_BATCH, SHARES, Data
from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base import dataset as dataset_module
from streaming.base import util
from streaming.base.shared import prefix as shared_memory
from streaming.base.util import clean_stale_shared_memory

# Each node leads itself and has files of its own, so that the nodes have nothing to agree on: no process group.
for module in (dataset_module, shared_memory, util):
    module.maybe_init_dist = lambda: False


class Streaming:
    """`canonical` nodes, None for the library's default."""

    def __init__(self, data: Data, canonical: int | None) -> None:
        self._canonical = canonical
        self._folder = Path(tempfile.mkdtemp(prefix="streaming-drill-"))
        for name, documents in data.sources.items():
            with MDSWriter(out=str(self._folder / "0" / name), columns={"ids": "ndarray:int32"}) as writer:
                for document in documents:
                    writer.write({"ids": document.astype(np.int32)})
        for host in range(1, 8):
            shutil.copytree(self._folder / "0", self._folder / str(host))

    def open(self, hosts: int, weights: dict[str, float], state: Any, draw: random.Random) -> "_Attempt":
        """Returns an attempt of so many nodes."""
        del draw
        if weights != SHARES:
            message = "proportions hold for an epoch and resample the streams; other ones inside it have no meaning"
            raise NotImplementedError(message)
        clean_stale_shared_memory()
        parts = []
        for host in range(hosts):
            with _rank(host, hosts):
                streams = [Stream(local=str(self._folder / str(host) / name)) for name in SHARES]
                part = StreamingDataset(
                    streams=streams, shuffle=True, shuffle_seed=3, batch_size=GLOBAL_BATCH // hosts,
                    num_canonical_nodes=self._canonical,
                )  # fmt: skip
                if state is not None:
                    part.load_state_dict(state)
                parts.append(part)
        return _Attempt(parts)


@contextlib.contextmanager
def _rank(host: int, hosts: int) -> Iterator[None]:
    # A node of one rank each.
    os.environ.update(RANK=str(host), WORLD_SIZE=str(hosts), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    yield


class _Attempt:
    def __init__(self, parts: list[Any]) -> None:
        self._parts, self._taken = parts, 0
        self._rows: list[Any] = []
        for host, part in enumerate(parts):
            with _rank(host, len(parts)):
                rows = iter(part)
                # The first sample is read here, so that the iterator knows the rank it belongs to.
                first = list(itertools.islice(rows, 1))
                self._rows.append(itertools.chain(first, rows))

    def step(self) -> list[int] | None:
        """Returns the ids of all hosts."""
        ids: list[int] = []
        each = GLOBAL_BATCH // len(self._rows)
        for host, rows in enumerate(self._rows):
            with _rank(host, len(self._rows)):
                for row in itertools.islice(rows, each):
                    ids += row["ids"].tolist()
        self._taken += GLOBAL_BATCH
        return ids or None

    def state(self) -> Any:
        """Returns the state after the samples that all hosts took."""
        with _rank(0, len(self._rows)):
            return self._parts[0].state_dict(self._taken, from_beginning=False)

    def close(self) -> None:
        """Ends the threads."""
        for rows in self._rows:
            del rows
        self._parts, self._rows = [], []


def pipelines(kills: int) -> Iterator[tuple[str, Streaming, Data]]:
    """Yields what is drilled, with data for so many kills."""
    data = Data.of(40 * kills, 32)
    yield "natural shares, shuffled, canonical nodes as many as hosts", Streaming(data, None), data
    yield "natural shares, shuffled, 24 canonical nodes", Streaming(data, 24), data
