"""The other side of data_pipeline.py: the same job by grain's own pipeline, or by a PyTorch DataLoader.

python data_pipeline_side.py grain|torch FILE LENGTH BATCH; prints one line of JSON. Either encodes the bytes of each
record's text between a begin and an end id, packs rows by best fit, and batches them, in two workers.
"""

import bisect
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

BOS, EOS, WORKERS, BINS = 257, 258, 2, 128


def encoded(line: bytes) -> np.ndarray:
    """Returns the ids of a line's text."""
    text = json.loads(line)["text"].encode()
    return np.concatenate([[BOS], np.frombuffer(text, np.uint8), [EOS]]).astype(np.int32)


def grain_batches(path: str, length: int, batch: int) -> tuple[Iterator[Any], str]:
    """Returns an iterator over batches, and the library's version."""
    import importlib.metadata

    import grain
    from grain import experimental

    with open(path, "rb") as file:
        lines = file.readlines()
    documents = grain.MapDataset.source(lines).shuffle(seed=0).map(lambda line: {"ids": encoded(line)[:length]})
    rows = experimental.BestFitPackIterDataset(
        documents.to_iter_dataset(grain.ReadOptions(num_threads=WORKERS)),
        length_struct={"ids": length},
        num_packing_bins=BINS,
    )
    return iter(rows.batch(batch)), f"grain {importlib.metadata.version('grain')}"


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
                yield from packed([encoded(line)[:length] for line in lines[begin : begin + 4096]], length)

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
    batches, version = {"grain": grain_batches, "torch": torch_batches}[side](path, length, batch)
    count = sum(1 for _ in batches)
    seconds = time.perf_counter() - begin
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found = {"version": version, "batches": count, "seconds": seconds, "peak_megabytes": peak / 1024}
    sys.stdout.write(json.dumps(found) + "\n")
