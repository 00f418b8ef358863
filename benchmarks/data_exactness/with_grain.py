"""Grain in the drill, without Kanawa: its own mixing, shuffling, packing, threads and checkpoints.

A map dataset is random access, so its best configuration on other hosts is the global row, computed by hand from the
state; `ElasticIterator` is what grain offers for it. Mixing ends with the first exhausted source.
"""

import random
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from drill import GLOBAL_BATCH, Data

_ROW = 32


class Grain:
    """`packs` by best fit, and `elastic` uses the ElasticIterator; else each host has a slice of the map dataset."""

    ends_early = True

    def __init__(self, data: Data, *, packs: bool = False, elastic: bool = False) -> None:
        self._packs, self._elastic = packs, elastic
        self._parts = {
            name: grain.MapDataset.source(documents).seed(3).shuffle() for name, documents in data.sources.items()
        }
        places = {
            name: grain.MapDataset.source(range(len(documents))).seed(3).shuffle()
            for name, documents in data.sources.items()
        }
        self._order = {name: [int(part[i]) for i in range(len(part))] for name, part in places.items()}

    def order(self, name: str) -> list[int]:
        """Returns the documents of a source in their shuffled order."""
        return self._order[name]

    def open(self, hosts: int, weights: dict[str, float], state: Any, draw: random.Random) -> "_Attempt":
        """Returns an attempt that goes on from the hosts' states."""
        mixed = grain.MapDataset.mix([self._parts[name] for name in weights], list(weights.values()))
        threads = draw.randint(1, 4)
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + draw.randint(0, 4))
        each = GLOBAL_BATCH // hosts
        iterators = []
        for host in range(hosts):
            if self._elastic:
                shard = grain.sharding.ShardOptions(shard_index=host, shard_count=hosts)
                iterators.append(
                    grain.experimental.ElasticIterator(
                        mixed.map(lambda d: np.pad(d, (0, 512 - len(d)))), GLOBAL_BATCH, shard, read_options=options
                    )
                )
                continue
            rows = mixed[host::hosts].to_iter_dataset(options)
            if self._packs:
                rows = rows.map(lambda d: {"ids": d[:_ROW]})
                rows = grain.experimental.BestFitPackIterDataset(
                    rows, length_struct={"ids": _ROW}, num_packing_bins=16, seed=3
                )
            iterators.append(iter(rows))
        if state is not None:
            self._resume(iterators, state, hosts)
        return _Attempt(iterators, 1 if self._elastic else each, elastic=self._elastic)

    def _resume(self, iterators: list[Any], state: list[Any], hosts: int) -> None:
        for host, iterator in enumerate(iterators):
            if self._elastic or len(state) == hosts:
                iterator.set_state(state[min(host, len(state) - 1)])
            elif self._packs:
                message = f"each of {len(state)} hosts has open bins of its own in its state: none is of {hosts} hosts"
                raise NotImplementedError(message)
            else:
                rows = sum(saved["next_index"] for saved in state)
                iterator.set_state({**state[0], "next_index": rows // hosts})


class _Attempt:
    def __init__(self, iterators: list[Any], each: int, *, elastic: bool) -> None:
        self._iterators, self._each, self._elastic = iterators, each, elastic

    def step(self) -> list[int] | None:
        """Returns the ids of all hosts; None where all have ended."""
        ids: list[int] = []
        for iterator in self._iterators:
            for _ in range(self._each):
                row = next(iterator, None)
                if row is not None:
                    ids += np.ravel(row["ids"] if isinstance(row, dict) else row).tolist()
        return [i for i in ids if i] or None

    def state(self) -> Any:
        """Returns each host's state."""
        return [iterator.get_state() for iterator in self._iterators]

    def close(self) -> None:
        """Ends the threads."""
        for iterator in self._iterators:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()


def pipelines(kills: int) -> Iterator[tuple[str, Grain, Data]]:
    """Yields what is drilled, with data for so many kills."""
    data = Data.of(60 * kills, _ROW)
    yield "mixed, shuffled", Grain(data), data
    yield "mixed, shuffled, ElasticIterator", Grain(data, elastic=True), data
    short = Data({name: [d[:_ROW] for d in documents] for name, documents in data.sources.items()})
    yield "mixed, shuffled, packed best-fit", Grain(short, packs=True), short
