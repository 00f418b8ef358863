"""Kanawa in the drill: packing, mixing, shuffling, a loader a host; threads and read-ahead are drawn each attempt."""

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from drill import GLOBAL_BATCH, Data
from kanawa.contracts.data import Split
from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.packed import PackedSource
from kanawa_runtime.data.packing import BestFitPacking, FirstFitPacking
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer


class Ids(ByteTokenizer):
    """Stands for a vocabulary that has an id for every position of the data."""

    vocab_size = 1 << 23
    byte_lengths = np.ones(vocab_size, np.int32)


class Documents(PackedSource):
    """The drill's documents of one source; a first id, 0, is what the first target is predicted from."""

    data: ClassVar[Data]
    tokenizer = Ids.Config().build()

    class Config(PackedSource.Config):
        name: str = ""

    @property
    def content_digest(self) -> str:
        """The source's name and its number of ids."""
        return f"{self.config.name} {self.data.count}"

    def read_examples(self, split: Split) -> Iterator[Example]:
        """Yields the documents."""
        del split
        for document in self.data.sources[self.config.name]:
            yield Example(np.concatenate([[0], document]).astype(np.int32))


class Kanawa:
    """Packs by best fit or first fit, in windows of 512 documents, and mixes in blocks of 32 rows."""

    def __init__(self, data: Data, row_length: int, *, first_fit: bool = False) -> None:
        Documents.data = data
        self._length, self._packing = row_length, FirstFitPacking if first_fit else BestFitPacking

    def open(self, hosts: int, weights: dict[str, float], state: Any, draw: random.Random) -> "_Attempt":
        """Returns an attempt; nothing but the state goes from one to the next."""
        sources = {
            name: Documents.Config(name=name, packing=self._packing.Config(), window_documents=512, epochs=1)
            for name in weights
        }
        source = Mixture.Config(
            sources=sources, weights=weights, when_exhausted="drop", block_rows=32, sequence_length=self._length, seed=3
        ).build()
        row, saved = (0, {}) if state is None else state
        source.resume(row, saved)
        return _Attempt(source, hosts, row, draw)


class _Attempt:
    def __init__(self, source: Mixture, hosts: int, row: int, draw: random.Random) -> None:
        self._source, self._row = source, row
        each = GLOBAL_BATCH // hosts
        self._loaders = []
        for host in range(hosts):
            cfg = GrainLoader.Config(num_threads=draw.randint(1, 4), prefetch_batches=draw.randint(1, 6))
            rows = range(host * each, (host + 1) * each)
            loader = cfg.build(source=source, global_batch=GLOBAL_BATCH, local_rows=rows, start_row=row)
            self._loaders.append(iter(loader))

    def step(self) -> list[int] | None:
        """Returns the weighted targets of all hosts."""
        batches = [next(loader, None) for loader in self._loaders]
        if any(batch is None for batch in batches):
            return None
        self._row += GLOBAL_BATCH
        return np.concatenate([b.target_ids[b.loss_weights > 0] for b in batches if b is not None]).tolist()

    def state(self) -> Any:
        """Returns the number of rows consumed, and the weights of the past."""
        return self._row, self._source.saved(self._row)

    def close(self) -> None:
        """Ends the loaders' threads."""
        for loader in self._loaders:
            loader.close()


def pipelines(kills: int) -> Iterator[tuple[str, Kanawa, Data]]:
    """Yields what is drilled, with data for so many kills."""
    data = Data.of(60 * kills, 32)
    yield "packed best-fit, mixed, shuffled", Kanawa(data, 32), data
