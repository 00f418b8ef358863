"""The other side of data_pipeline.py: the same job by grain's own pipeline, or by a PyTorch DataLoader.

python data_pipeline_side.py grain-threads|grain-processes|torch FILE LENGTH BATCH; prints one line of JSON. Each
encodes the bytes of each record's text between a begin and an end id, packs rows by best fit, and batches them, in two
workers.
"""

import bisect
import functools
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BOS, EOS, WORKERS, BINS = 257, 258, 2, 128
#: A tokenizer.json; "" encodes bytes.
TOKENIZER = os.environ.get("SIDE_TOKENIZER", "")


@functools.cache
def library_tokenizer(file: str) -> Any:
    """Returns a tokenizer that encodes in this process alone: workers share the cores already."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)


def all_encoded(lines: list[bytes]) -> list[np.ndarray]:
    """Returns the ids of each line's text, between its begin and end tokens."""
    if not TOKENIZER:
        return [encoded(line) for line in lines]
    texts = [json.loads(line)["text"] for line in lines]
    found = library_tokenizer(TOKENIZER).encode_batch_fast(texts, add_special_tokens=False)
    return [np.array([BOS, *each.ids, EOS], np.int32) for each in found]


def encoded(line: bytes) -> np.ndarray:
    """Returns the ids of a line's text."""
    if TOKENIZER:
        return all_encoded([line])[0]
    text = json.loads(line)["text"].encode()
    return np.concatenate([[BOS], np.frombuffer(text, np.uint8), [EOS]]).astype(np.int32)


class Lines:
    """The lines of a file, read where they lie; a worker process opens it anew."""

    def __init__(self, path: str) -> None:
        self._path, self._file = path, Path(path).open("rb")  # noqa: SIM115 - open as long as its lines are read
        self._ends = np.cumsum([len(line) for line in self._file])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        begin = int(self._ends[number - 1]) if number else 0
        return os.pread(self._file.fileno(), int(self._ends[number]) - begin, begin)

    def __getstate__(self) -> tuple[str, np.ndarray]:
        return self._path, self._ends

    def __setstate__(self, state: tuple[str, np.ndarray]) -> None:
        self._path, self._ends = state
        self._file = Path(self._path).open("rb")  # noqa: SIM115


def grain_batches(path: str, length: int, batch: int, *, processes: bool) -> tuple[Iterator[Any], str]:
    """Returns an iterator over batches, and the library's version."""
    import importlib.metadata

    import grain
    from grain import experimental

    source = grain.MapDataset.source(Lines(path)).shuffle(seed=0)
    documents = source.map(functools.partial(ids_of, length=length))
    rows = experimental.BestFitPackIterDataset(
        documents.to_iter_dataset(grain.ReadOptions(num_threads=1 if processes else WORKERS)),
        length_struct={"ids": length},
        num_packing_bins=BINS,
    ).batch(batch)
    if processes:
        from absl import flags

        flags.FLAGS(sys.argv[:1])
        rows = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=4))
    workers = f"{WORKERS} {'processes' if processes else 'threads'}"
    return iter(rows), f"grain {importlib.metadata.version('grain')}, {workers}"


def ids_of(line: bytes, length: int) -> dict[str, np.ndarray]:
    """Returns a document as grain packs it."""
    return {"ids": encoded(line)[:length]}


def torch_batches(path: str, length: int, batch: int) -> tuple[Iterator[Any], str]:
    """Returns an iterator over batches, and the library's version."""
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            with open(path, "rb") as file:
                lines = [line for number, line in enumerate(file) if number % info.num_workers == info.id]
            np.random.default_rng(0).shuffle(lines)
            for begin in range(0, len(lines), 4096):
                some = all_encoded(lines[begin : begin + 4096])
                yield from packed([ids[:length] for ids in some], length)

    loader = torch.utils.data.DataLoader(Rows(), batch_size=batch, num_workers=WORKERS, prefetch_factor=4)
    return iter(loader), f"torch {torch.__version__}"


def packed(documents: list[np.ndarray], length: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields rows of ids and segments: best fit, long documents first."""
    room, rows = [], []
    for ids in sorted(documents, key=len, reverse=True):
        place = bisect.bisect_left(room, (len(ids), -1))
        left, row = room.pop(place) if place < len(room) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(ids)
        if left > len(ids):
            bisect.insort(room, (left - len(ids), row))
    for row in rows:
        ids, segments = np.zeros(length, np.int32), np.zeros(length, np.int32)
        filled = 0
        for number, document in enumerate(row, 1):
            ids[filled : filled + len(document)] = document
            segments[filled : filled + len(document)] = number
            filled += len(document)
        yield {"ids": ids, "segments": segments}


if __name__ == "__main__":
    side, path, length, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    begin = time.perf_counter()
    if side == "torch":
        batches, version = torch_batches(path, length, batch)
    else:
        batches, version = grain_batches(path, length, batch, processes=side == "grain-processes")
    count = sum(1 for _ in batches)
    seconds = time.perf_counter() - begin
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found = {"version": version, "batches": count, "seconds": seconds, "peak_megabytes": peak / 1024}
    sys.stdout.write(json.dumps(found) + "\n")
