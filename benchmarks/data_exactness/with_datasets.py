"""Hugging Face datasets in the drill: streams, interleaved by probability, a state_dict a host; it doesn't pack.

Each source is a stream of 48 shards, which every number of hosts of the drill divides. With
`all_exhausted_without_replacement` every example is read once.

"""

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node
from drill import GLOBAL_BATCH, Data

_SHARDS = 48


class Datasets:
    """`buffer` examples are shuffled together; 0 shuffles nothing, 1 the shards alone."""

    def __init__(self, data: Data, buffer: int, shards: int = _SHARDS) -> None:
        self._buffer = buffer
        columns = {name: {"ids": [d.tolist() for d in documents]} for name, documents in data.sources.items()}
        self._parts = {
            name: datasets.Dataset.from_dict(column).to_iterable_dataset(num_shards=shards)
            for name, column in columns.items()
        }

    def open(self, hosts: int, weights: dict[str, float], state: Any, draw: random.Random) -> "_Attempt":
        """Returns an attempt: a host takes its own state, or where there are other hosts the state of the first."""
        del draw
        parts = [self._parts[name] for name in weights]
        if self._buffer:
            parts = [part.shuffle(seed=3, buffer_size=self._buffer) for part in parts]
        mixed = datasets.interleave_datasets(
            parts, list(weights.values()), seed=3, stopping_strategy="all_exhausted_without_replacement"
        )
        streams = [split_dataset_by_node(mixed, host, hosts) for host in range(hosts)]
        for host, stream in enumerate(streams):
            if state is not None:
                stream.load_state_dict(state[host] if len(state) == hosts else state[0])
        return _Attempt(streams)


class _Attempt:
    def __init__(self, streams: list[Any]) -> None:
        self._streams = streams
        self._rows = [iter(stream) for stream in streams]

    def step(self) -> list[int] | None:
        """Returns the ids of all hosts; a host whose part has ended waits for the others."""
        each = GLOBAL_BATCH // len(self._rows)
        rows = [row for stream in self._rows for row in itertools.islice(stream, each)]
        return [i for row in rows for i in row["ids"]] if rows else None

    def state(self) -> Any:
        """Returns each host's state_dict."""
        return copy.deepcopy([stream.state_dict() for stream in self._streams])

    def close(self) -> None:
        """Does nothing: there are no threads."""


def pipelines(kills: int) -> Iterator[tuple[str, Datasets, Data]]:
    """Yields what is drilled, with data for so many kills."""
    data = Data.of(40 * kills, 32)
    yield "mixed, in order", Datasets(data, 0), data
    yield "mixed, shards shuffled", Datasets(data, 1), data
    yield "mixed, shuffle buffer of 100", Datasets(data, 100), data
