"""Kanawa in the drill on tokenised shards: every attempt is a process of its own, and a kill is SIGKILL.

Documents are lines of JSON Lines, whose words are the ids. They are encoded into shards of a few kB, by this process or
by workers, while rows are read or before; threads, read-ahead and workers are drawn each attempt. Some attempts find
a shard removed, or damaged, what was found of the files forgotten, or every sign of what earlier ones had encoded gone.
Half of the attempts are killed before their first step, most of them in the reading that finds the digest and encodes.
"""

import collections
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from drill import GLOBAL_BATCH, Data
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

#: Imported once, by a process of which each attempt is a copy.
_PRELOADED = ("kanawa_runtime.data.mixture", "kanawa_runtime.data.source", "kanawa_runtime.data.text_files", "grain")
_SHARD_BYTES = 16_384
_WINDOW = 512
#: What an attempt does when it is killed.
_PHASES = ("starts", "reads for the first time", "plans and opens", "reads rows")
_PLANS, _READS = 2, 3


class Words(ByteTokenizer):
    """An id is a decimal number between blanks; 0 begins a text and ends it."""

    pad_id = bos_id = eos_id = 0
    vocab_size = 1 << 23
    byte_lengths = np.ones(vocab_size, np.int32)

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the numbers."""
        return np.array(text.split(), np.int32)


class Shards:
    """Packs by best fit and first fit, shuffles over an epoch or in windows, and mixes in blocks of 32 rows."""

    early_kills = 0.5

    def __init__(self, data: Data, row_length: int, root: Path) -> None:
        self._length, self.root = row_length, root
        self.killed_in: collections.Counter[str] = collections.Counter()
        self.count = sum(map(len, data.sources.values()))
        for name, documents in data.sources.items():
            lines = (json.dumps({"text": " ".join(map(str, document))}) + "\n" for document in documents)
            (self.root / f"{name}.jsonl").write_text("".join(lines))
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload([*_PRELOADED])

    def open(self, hosts: int, weights: dict[str, float], state: Any, draw: random.Random) -> "_Attempt":
        """Returns an attempt; nothing but the state and the cache go from one to the next."""
        self._spoil(draw)
        settings = {
            "root": str(self.root),
            "length": self._length,
            "weights": weights,
            "hosts": hosts,
            "workers": draw.randint(1, 2),
            "loaders": [(draw.randint(1, 4), draw.randint(1, 6)) for _ in range(hosts)],
        }
        ours, theirs = self._processes.Pipe()
        seen = self._processes.Value(_Seen, lock=False)
        process = self._processes.Process(target=_attempt, args=(theirs, seen, settings, state), daemon=False)
        process.start()
        theirs.close()
        return _Attempt(self, process, ours, seen, draw)

    def _spoil(self, draw: random.Random) -> None:
        cache = self.root / "cache"
        shards = sorted(cache.glob("shards/*/*.shard"))
        chance = draw.random()
        if shards and chance < 0.1:
            shard = draw.choice(shards)
            if chance < 0.05:
                shard.unlink()
            else:
                content = bytearray(shard.read_bytes())
                content[draw.randrange(len(content))] ^= 1
                shard.write_bytes(content)
        if draw.random() < 0.8:
            # Files are read again for their digest, and what is encoded is taken over.
            shutil.rmtree(cache / "scans", ignore_errors=True)
        elif chance > 0.7:
            shutil.rmtree(cache, ignore_errors=True)


class _Attempt:
    """A process that takes a step when it is asked to; the parent sees a step whole or not at all."""

    def __init__(self, pipeline: Shards, process: Any, pipe: Any, seen: Any, draw: random.Random) -> None:
        self._pipeline, self._process, self._pipe, self._seen, self._draw = pipeline, process, pipe, seen, draw
        self._state, self._has_stepped = None, False

    def step(self) -> list[int] | None:
        """Returns the weighted targets of all hosts."""
        self._pipe.send("step")
        answer = self._pipe.recv()
        self._has_stepped = True
        if isinstance(answer, str):
            raise RuntimeError(answer)
        ids, self._state = answer
        return None if ids is None else list(ids)

    def state(self) -> Any:
        """Returns the number of rows consumed, and the weights of the past."""
        return self._state

    def close(self) -> None:
        """Kills the process, and with it what it had begun."""
        draw = self._draw
        if self._has_stepped:
            # Between what the process has answered and what it does next.
            time.sleep(draw.choice((0.0, draw.uniform(0, 0.02), draw.uniform(0, 0.2))))
        elif draw.random() < 0.9:
            # It kills itself at that document, if it reads so many for the first time.
            self._seen.last_document = draw.randrange(1, self._pipeline.count // 2)
            while self._process.is_alive() and self._seen.phase < _PLANS:
                time.sleep(0.001)
        self._process.kill()
        self._process.join()
        self._pipeline.killed_in[_PHASES[self._seen.phase]] += 1
        self._pipe.close()


class _Seen(ctypes.Structure):
    """What parent and attempt share: a place in `_PHASES`, and the document at which the attempt kills itself."""

    _fields_ = (("phase", ctypes.c_int), ("last_document", ctypes.c_int))


def _attempt(pipe: Any, seen: Any, settings: dict[str, Any], state: Any) -> None:
    """Runs in the attempt's process: answers (ids, state) to every message."""
    os.environ["KANAWA_CACHE"] = str(Path(settings["root"], "cache"))
    # Processes that encode find this file's tokenizer there.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    try:
        _watch_first_reading(seen)
        source, row = _source(settings, state)
        seen.phase = _PLANS
        loaders = list(_loaders(source, row, settings))
        while True:
            pipe.recv()
            batches = [next(loader, None) for loader in loaders]
            if any(batch is None for batch in batches):
                pipe.send((None, None))
                continue
            seen.phase = _READS
            row += GLOBAL_BATCH
            ids = np.concatenate([b.target_ids[b.loss_weights > 0] for b in batches if b is not None]).tolist()
            pipe.send((ids, (row, source.saved(row))))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - the drill raises it
        with contextlib.suppress(OSError):
            pipe.recv()
            pipe.send(f"{type(error).__name__}: {error}")


def _watch_first_reading(seen: Any) -> None:
    """Counts the documents of readings that find a digest, and ends this process at the one that `seen` names."""
    from kanawa_runtime.data import corpus

    whole, counted = corpus._FirstReading.__iter__, itertools.count(1)

    def watched(reading: Any) -> Iterator[Any]:
        seen.phase = 1
        for document in whole(reading):
            yield document
            if next(counted) == seen.last_document:
                os.kill(os.getpid(), signal.SIGKILL)
        seen.phase = 0

    corpus._FirstReading.__iter__ = watched


def _source(settings: dict[str, Any], state: Any) -> tuple[Any, int]:
    from kanawa_runtime.data import encoding
    from kanawa_runtime.data.mixture import Mixture
    from kanawa_runtime.data.packing import BestFitPacking, FirstFitPacking
    from kanawa_runtime.data.source import TextSource
    from kanawa_runtime.data.text_files import JsonLines

    encoding.SHARD_BYTES = _SHARD_BYTES
    kinds = ((BestFitPacking, "window"), (FirstFitPacking, "epoch"), (BestFitPacking, "epoch"))
    sources = {
        name: TextSource.Config(
            corpus=JsonLines.Config(files=(f"{name}.jsonl",), root=settings["root"], validation_one_in=0),
            tokenizer=Words.Config(),
            packing=packing.Config(),
            shuffle_within=within,
            window_documents=_WINDOW,
            encode_processes=settings["workers"],
            epochs=1,
        )
        for name, (packing, within) in zip(settings["weights"], kinds, strict=True)
    }
    made = Mixture.Config(
        sources=sources, weights=settings["weights"], when_exhausted="drop", block_rows=32,
        sequence_length=settings["length"], seed=3,
    ).build()  # fmt: skip
    row, saved = (0, {}) if state is None else state
    made.resume(row, saved)
    return made, row


def _loaders(source: Any, row: int, settings: dict[str, Any]) -> Iterator[Any]:
    from kanawa_runtime.data.loader import GrainLoader

    each = GLOBAL_BATCH // settings["hosts"]
    for host, (threads, ahead) in enumerate(settings["loaders"]):
        cfg = GrainLoader.Config(num_threads=threads, prefetch_batches=ahead)
        rows = range(host * each, (host + 1) * each)
        yield iter(cfg.build(source=source, global_batch=GLOBAL_BATCH, local_rows=rows, start_row=row))


def pipelines(kills: int) -> Iterator[tuple[str, Shards, Data]]:
    """Yields what is drilled, with data for so many kills."""
    data = Data.of(60 * kills, 32)
    with tempfile.TemporaryDirectory(prefix="kanawa-drill-") as folder:
        yield "tokenised shards, packed, mixed, shuffled, killed by SIGKILL", Shards(data, 32, Path(folder)), data
