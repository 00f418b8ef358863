"""Data become shards of ids in processes of their own, in order, and what an earlier attempt finished is taken over.

Run as a module it is such a process: it encodes what comes on its input until that ends.
"""

import abc
import collections
import contextlib
import hashlib
import itertools
import logging
import os
import pickle
import queue
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.data.corpus import Document
from kanawa_runtime.data.errors import CorpusError, ShardError
from kanawa_runtime.data.shards import VERSION, Example, ShardHead, id_dtype, read_head, write_shard
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import tokenizer_from_bytes

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Text in a shard; a batch of so much, and what it becomes, is in memory for each process.
SHARD_BYTES = 1 << 24
#: Short documents, or records, fill a shard by number.
_MOST_ITEMS = 1 << 17
#: Tokens in a shard of examples that aren't plain text.
_SHARD_TOKENS = 1 << 22
_MOST_PROCESSES = 8
_LENGTH = struct.Struct("!Q")


def default_processes() -> int:
    """Returns how many processes encode: the cores that this one may use, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_PROCESSES)


def text_examples(texts: Iterable[bytes], tokenizer: Tokenizer, dtype: Any = np.int32) -> Iterator[Example]:
    """Yields each text's ids in `dtype`, between its begin and end tokens."""
    begin, end = np.array([tokenizer.bos_id], dtype), np.array([tokenizer.eos_id], dtype)
    # Narrowed at once: a batch of bytes has 16 million ids.
    return (Example(np.concatenate([begin, ids.astype(dtype), end])) for ids in tokenizer.encode_each(texts))


class BatchEncoder(abc.ABC):
    """Makes shards of batches, here or in other processes, which get it pickled."""

    @abc.abstractmethod
    def key(self, batch: list[Any]) -> str:
        """Returns a shard's name: a digest of the batch and all that its examples depend on."""

    @abc.abstractmethod
    def encode(self, batch: list[Any], key: str, folder: Path) -> ShardHead:
        """Encodes a batch and writes its shard; returns its head."""


class TextEncoder(BatchEncoder):
    """Encodes batches of documents' bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __reduce__(self) -> tuple[Any, ...]:
        """Takes the tokenizer as its file, as a run does."""
        return _text_encoder, (self._tokenizer.to_bytes(),)

    def key(self, batch: list[bytes]) -> str:
        """Returns a digest of the documents and the tokenizer."""
        return batch_key(f"text {VERSION} {self._tokenizer.digest}", batch)

    def encode(self, batch: list[bytes], key: str, folder: Path) -> ShardHead:
        """Encodes documents and writes their shard; returns its head."""
        tokenizer = self._tokenizer
        examples = list(text_examples(batch, tokenizer, id_dtype(tokenizer.vocab_size)))
        num_bytes = sum(map(len, batch))
        return write_shard(folder, key, examples, tokenizer.vocab_size, tokenizer.byte_lengths, num_bytes)


def _text_encoder(content: bytes) -> TextEncoder:
    return TextEncoder(tokenizer_from_bytes(content))


def batch_key(what: str, parts: Iterable[bytes]) -> str:
    """Returns a shard's name that depends on `what` and every part."""
    hasher = hashlib.sha256(f"{what}\n".encode())
    for data in parts:
        hasher.update(b"%d\n" % len(data))
        hasher.update(data)
    return hasher.hexdigest()[:40]


def text_batches(documents: Iterable[Document]) -> Iterator[list[bytes]]:
    """Yields the bytes of documents in batches of a shard each."""
    return batches((document.data for document in documents), len, SHARD_BYTES)


def batches(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yields items in lists that end once their sizes reach `most`."""
    batch: list[T] = []
    filled = 0
    for item in items:
        batch.append(item)
        filled += size(item)
        if filled >= most or len(batch) == _MOST_ITEMS:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def encoded_shards(
    batches: Iterator[list[Any]], encoder: BatchEncoder, folder: Path, processes: int
) -> Iterator[ShardHead]:
    """Yields the shards of batches in order, once each is on disk; those that are there aren't encoded again.

    A shard's name says what it was made of, so an attempt that was killed, or data that have grown at their end, lose
    nothing. With one batch, or one process, this process encodes.
    """
    first = list(itertools.islice(batches, 2))
    ahead: collections.deque[ShardHead | Future[ShardHead]] = collections.deque()
    with contextlib.ExitStack() as stack:
        pool: _Pool | None = None
        for batch in itertools.chain(first, batches):
            key = encoder.key(batch)
            head = read_head(folder, key)
            if head is not None:
                ahead.append(head)
            elif processes == 1 or len(first) == 1:
                yield from _finished(ahead)
                ahead.clear()
                ahead.append(encoder.encode(batch, key, folder))
            else:
                pool = pool or stack.enter_context(_Pool(encoder, folder, processes))
                ahead.append(pool.submit(key, batch))
            # As many batches in memory as processes, and as many again that wait for one.
            while len(ahead) > 2 * processes:
                yield _result(ahead.popleft())
        yield from _finished(ahead)


def _finished(ahead: Iterable["ShardHead | Future[ShardHead]"]) -> Iterator[ShardHead]:
    return map(_result, ahead)


def _result(made: "ShardHead | Future[ShardHead]") -> ShardHead:
    return made.result() if isinstance(made, Future) else made


def example_shards(examples: Iterable[Example], name: str, tokenizer: Tokenizer, folder: Path) -> Iterator[ShardHead]:
    """Yields the shards of examples in order; `name` names everything that they depend on."""
    waiting: list[Example] = []
    tokens = number = 0
    for example in examples:
        waiting.append(example)
        tokens += len(example.ids)
        if tokens >= _SHARD_TOKENS:
            yield _written(waiting, f"{name} {number}", tokenizer, folder)
            waiting, tokens, number = [], 0, number + 1
    if waiting:
        yield _written(waiting, f"{name} {number}", tokenizer, folder)


def _written(examples: list[Example], name: str, tokenizer: Tokenizer, folder: Path) -> ShardHead:
    key = hashlib.sha256(f"examples {VERSION} {name}".encode()).hexdigest()[:40]
    return write_shard(folder, key, examples, tokenizer.vocab_size, tokenizer.byte_lengths)


class _Pool:
    """Processes that encode batches; each is spoken to by a thread of its own."""

    def __init__(self, encoder: BatchEncoder, folder: Path, processes: int) -> None:
        self._start = pickle.dumps((encoder, str(folder)))
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="kanawa-encode")
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            # A process ends with its input; one in the middle of a batch needn't finish it.
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.communicate()

    def submit(self, key: str, batch: list[Any]) -> "Future[ShardHead]":
        """Has a batch encoded."""
        return self._threads.submit(self._encode, key, batch)

    def _encode(self, key: str, batch: list[Any]) -> ShardHead:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process.stdin, pickle.dumps((key, batch), protocol=5))
            answer = _received(process.stdout)
        except OSError:
            answer = None
        if answer is None:
            message = (
                f"a process that encodes text ended with code {process.wait()}; a negative one is a signal, -9 often "
                "means too little memory: set data.encode_processes=1"
            )
            raise ShardError(message)
        self._idle.put(process)
        made = pickle.loads(answer)
        if isinstance(made, Exception):
            raise made
        return ShardHead(*made)

    def _started(self) -> "subprocess.Popen[bytes]":
        # Not multiprocessing: it would run the main module again, which a notebook or a script needn't survive.
        command = [sys.executable, "-P", "-m", __name__]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        self._all.append(process)
        assert process.stdin is not None
        _send(process.stdin, self._start)
        return process


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes | None:
    """Returns a message; None where the stream has ended."""
    size = stream.read(_LENGTH.size)
    if len(size) < _LENGTH.size:
        return None
    (count,) = _LENGTH.unpack(size)
    message = stream.read(count)
    return message if len(message) == count else None


def _work(source: IO[bytes], answers: IO[bytes]) -> None:
    """Encodes batches until the input ends, which it does with the process that sends them."""
    start = _received(source)
    if start is None:
        return
    encoder, folder = pickle.loads(start)
    while (message := _received(source)) is not None:
        key, batch = pickle.loads(message)
        try:
            made: Any = tuple(encoder.encode(batch, key, Path(folder)))
        except Exception as error:  # A tokenizer's own library may raise anything.
            known = type(error) in (CorpusError, ShardError, UsageError)
            made = type(error)(str(error)) if known else ShardError(f"{type(error).__name__}: {error}")
        _send(answers, pickle.dumps(made))


if __name__ == "__main__":
    # What libraries print must not come between answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        _work(sys.stdin.buffer, answers)
