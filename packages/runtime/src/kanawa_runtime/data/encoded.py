"""A split as encoded examples in shards on disk, through the cache; and the tokenizer learned for it."""

import atexit
import bisect
import functools
import json
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from kanawa.config import to_json
from kanawa.errors import INTERRUPTIONS
from kanawa.local_path import cache_folder

from kanawa_runtime.compile_cache import CheckedFiles
from kanawa_runtime.data.corpus import Corpus
from kanawa_runtime.data.derived import cache_key, cached
from kanawa_runtime.data.errors import CorpusError, RowError, ShardError
from kanawa_runtime.data.shards import Example, Shard, ShardHead, read_head
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import tokenizer_from_bytes

__all__ = ["EncodedDocuments", "Example", "Lengths", "fitted_tokenizer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Reads after which the memory that shards are mapped to is released; one may map up to 2 MB, where pages are large.
_MOST_MAPPED = 32
#: Part of every key: raise it when the same inputs would give other entries.
_TOKENIZER_VERSION = "2"
_INDEX_VERSION = "3"


def fitted_tokenizer(cfg: Tokenizer.Config, corpora: Sequence[Corpus]) -> Tokenizer:
    """Returns the tokenizer of `cfg`, learned from the training splits of `corpora` only."""

    untrained: Tokenizer = cfg.clone().build()
    if not untrained.learns:
        return untrained

    def learn() -> bytes:
        return untrained.fit(d.data for corpus in corpora for d in corpus.documents("train")).to_bytes()

    settings = json.dumps(to_json(cfg), sort_keys=True)
    key = cache_key(_TOKENIZER_VERSION, settings, *(corpus.digest for corpus in corpora))
    tokenizer: Tokenizer = cached("tokenizers", key, learn, tokenizer_from_bytes)
    return tokenizer


class EncodedDocuments:
    """The examples of a split, in shards that are mapped from disk; of text: begin token, text, end token.

    `make` yields the shards in order, and is called where the cache has no index of them, or a damaged shard. With
    `total`, the number of examples, it runs in a thread, and what needs only the first shards doesn't wait for others.
    """

    def __init__(
        self, parts: Sequence[str], make: Callable[[Path], Iterator[ShardHead]], total: int | None = None
    ) -> None:
        """Takes in `parts` the names of everything that the examples depend on; raises RowError for no example."""
        self._make, self._total = make, total
        self._folder = shard_folder()
        self._files = CheckedFiles(cache_folder() / "encoded")
        self._key = cache_key(_INDEX_VERSION, *parts)
        self._shards: list[Shard] = []
        #: How many examples there are up to and including each shard.
        self._ends: list[int] = []
        self._text_bytes = self._spelled_bytes = 0
        self._grown = threading.Condition()
        self._repairing = threading.Lock()
        #: The shards that pieces were read from lately.
        self._mapped: list[Shard] = []
        self._complete = False
        self._failure: BaseException | None = None
        heads = self._indexed()
        if heads is not None:
            self._finish(heads)
        elif total is None:
            self._build()
        else:
            threading.Thread(target=self._build_aside, name="kanawa-encode-all", daemon=True).start()

    # --- building ------------------------------------------------------------------------------------------------

    def _indexed(self) -> list[ShardHead] | None:
        """Returns the shards of an earlier build; None where it didn't end, or a shard is gone."""
        payload = self._files.get(self._key)
        if payload is None:
            return None
        heads = [read_head(self._folder, key) for key in json.loads(payload)]
        whole = [head for head in heads if head is not None]
        return whole if len(whole) == len(heads) else None

    def _build(self) -> None:
        heads = []
        for head in self._make(self._folder):
            heads.append(head)
            self._add(head)
        if not heads:
            message = "there is no example to make rows from"
            raise RowError(message)
        self._files.put(self._key, json.dumps([head.key for head in heads]).encode())
        with self._grown:
            self._complete = True
            self._grown.notify_all()

    def _build_aside(self) -> None:
        try:
            self._build()
        except BaseException as error:  # It is raised again where rows are asked for.
            with self._grown:
                self._failure = error
                self._grown.notify_all()
            if isinstance(error, INTERRUPTIONS):
                raise

    def _finish(self, heads: Sequence[ShardHead]) -> None:
        for head in heads:
            self._add(head)
        self._complete = True

    def _add(self, head: ShardHead) -> None:
        with self._grown:
            self._shards.append(Shard(self._folder, head))
            self._ends.append(head.examples + (self._ends[-1] if self._ends else 0))
            self._text_bytes += head.text_bytes
            self._spelled_bytes += head.spelled_bytes
            self._grown.notify_all()

    def _wait(self, examples: int | None) -> None:
        """Waits until so many examples, or all for None, are encoded; raises what ended the build."""
        # Asked of every piece.
        if self._complete:
            return
        with self._grown:
            while not self._complete and (examples is None or not self._ends or self._ends[-1] < examples):
                if self._failure is not None:
                    raise self._failure
                self._grown.wait()

    # --- reading -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        if self._total is not None:
            return self._total
        self._wait(None)
        return self._ends[-1]

    @property
    def heads(self) -> list[ShardHead]:
        """What all shards say of themselves."""
        self._wait(None)
        return [shard.head for shard in self._shards]

    @property
    def bytes_a_token_byte(self) -> float:
        """Bytes of text for each byte that its tokens stand for: 1 unless the tokenizer changes the text.

        Some put a space in front or normalise. Over a whole split the sum is then exact, as is nats per byte; while the
        split is being encoded, the ratio is that of the shards that are there.
        """
        self._wait(1)
        with self._grown:
            return self._text_bytes / self._spelled_bytes if self._spelled_bytes else 1.0

    @functools.cached_property
    def num_predictions(self) -> np.ndarray:
        """Tokens each example asks for, uint32 [examples]: all but its first."""
        self._wait(None)
        lengths = [self._read(number, _lengths) for number in range(len(self._shards))]
        return np.asarray(np.concatenate(lengths) - np.uint32(1))

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Returns `num_predictions` of some examples, int64, without waiting for others."""
        if self._complete:
            found: np.ndarray = self.num_predictions[examples].astype(np.int64)
            return found
        self._wait(int(examples.max()) + 1)
        places = np.searchsorted(np.array(self._ends), examples, side="right")
        out = np.empty(len(examples), np.int64)
        for number in np.unique(places).tolist():
            chosen = places == number
            begin = self._ends[number - 1] if number else 0
            out[chosen] = self._read(number, _lengths)[examples[chosen] - begin]
        return out - 1

    def example(self, example: int) -> Example:
        """Returns one example as it was encoded."""
        return self.piece(example, 0, None)

    def piece(self, example: int, start: int, stop: int | None) -> Example:
        """Returns ids `start` to `stop` of an example, None for its end, and their weights; None where all weigh 1."""
        number, local = self._place(example)

        def cut(shard: Shard) -> Example:
            begin, end = shard.offsets[local : local + 2].tolist()
            here = slice(begin + start, end if stop is None else begin + stop)
            return Example(shard.ids[here], None if shard.weights is None else shard.weights[here])

        return self._read(number, cut)

    def columns(self, example: int) -> bytes:
        """Returns the columns of the record behind an example, as they were written; b"" without a record."""
        number, local = self._place(example)
        return self._read(number, lambda shard: shard.columns(local))

    def _place(self, example: int) -> tuple[int, int]:
        """Returns an example's shard and its number in there."""
        self._wait(example + 1)
        number = bisect.bisect_right(self._ends, example)
        return number, example - (self._ends[number - 1] if number else 0)

    def _read(self, number: int, read: Callable[[Shard], T]) -> T:
        """Returns what `read` takes from a shard, which is made again where its file is damaged or gone."""
        shard = self._shards[number]
        self._mapped.append(shard)
        if len(self._mapped) >= _MOST_MAPPED:
            mapped, self._mapped = self._mapped, []
            for each in set(mapped):
                each.release()
        try:
            return read(shard)
        except ShardError as error:
            with self._repairing:
                if self._shards[number] is shard:
                    self._repair(number, shard, error)
            return read(self._shards[number])

    def _repair(self, number: int, shard: Shard, error: ShardError) -> None:
        logger.warning("%s: it is made again from the data", error)
        self._wait(None)
        try:
            shard.path.unlink(missing_ok=True)
        except OSError as refused:
            message = f"{error}; it can't be removed either ({refused}): remove {shard.path.parent.parent}"
            raise ShardError(message) from refused
        heads = list(self._make(self._folder))
        if heads != self.heads:
            message = f"{error}; the data has changed since it was encoded, so the shard can't be made again"
            raise CorpusError(message) from error
        self._shards[number] = Shard(self._folder, heads[number])


def _lengths(shard: Shard) -> np.ndarray:
    return shard.lengths


class Lengths:
    """The predictions of encoded examples by number, as a row plan asks for them."""

    def __init__(self, encoded: EncodedDocuments) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, examples: np.ndarray) -> np.ndarray:
        return self._encoded.predictions(examples)


def shard_folder() -> Path:
    """Returns the cache's folder of shards; where it can't be written, one that ends with this process."""
    return _writable(cache_folder() / "shards")


@functools.cache
def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        other = Path(tempfile.mkdtemp(prefix="kanawa-shards-"))
        atexit.register(shutil.rmtree, other, ignore_errors=True)
        fix = "set KANAWA_CACHE to a writable folder"
        logger.warning(
            "%s can't be written (%s), so encoded text is stored for this process only; %s", folder, error, fix
        )
        return other
