"""Packed rows of records: which are held out, which don't fit and what becomes of them, and the record behind a row."""

import abc
import collections
import functools
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from kanawa.config import REQUIRED, Count
from kanawa.contracts.data import DataSource
from kanawa.errors import UsageError

from kanawa_runtime.data.corpus import Split, name_hash
from kanawa_runtime.data.derived import cache_key, cached
from kanawa_runtime.data.encoded import EncodedDocuments, Example
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.packed import PackedSource
from kanawa_runtime.data.records.record import Record, Records

logger = logging.getLogger(__name__)

#: So many bad records are shown with their places.
_SHOWN = 3


class RecordError(UsageError):
    """A record can't be learned from; `at` is the column, with the place in it."""

    def __init__(self, at: str, why: str) -> None:
        super().__init__(f"{at}: {why}")
        self.at = at
        self.why = why


class Reading(NamedTuple):
    """What became of the records of a split: `skipped` (ordinal, why) have no example, `cut` of them lost the end."""

    records: int
    skipped: tuple[tuple[int, str], ...]
    cut: int

    def sentence(self, limit: int) -> str:
        """Returns what to show; "" where every record is learned whole."""
        parts = []
        if self.skipped:
            few = "; ".join(why for _, why in self.skipped[:_SHOWN])
            more = "; …" if len(self.skipped) > _SHOWN else ""
            parts.append(f"{len(self.skipped):,} of {self.records:,} records skipped ({few}{more})")
        if self.cut:
            parts.append(f"{self.cut:,} of {self.records:,} records cut to data.sequence_length={limit}")
        return ", ".join(parts)


class RecordSource(PackedSource):
    """Packed rows of records, each an example. A subclass says what the example of a record is: `example_of`.

    An example that is longer than a row loses its end, is skipped, or stops the run, as `on_long` says; a record that
    can't be learned from is skipped or stops it, as `on_bad` says. Both are counted and shown.
    """

    class Config(PackedSource.Config):
        CONTENT: ClassVar[tuple[str, ...]] = ("records",)

        records: Records.Config = REQUIRED
        #: One record in this many, chosen by the hash of its name, is held out; 0 holds out none.
        validation_one_in: Count = 20
        on_bad: Literal["stop", "skip"] = "stop"
        on_long: Literal["cut", "skip", "stop"] = "cut"

    @abc.abstractmethod
    def example_of(self, fields: Mapping[str, Any]) -> Example:
        """Returns the example of a record; raises RecordError for one that can't be learned from."""

    def cut_example(self, example: Example, tokens: int) -> Example:
        """Returns the first `tokens` ids of an example that is too long; raises RecordError where nothing is left."""
        return Example(example.ids[:tokens], None if example.weights is None else example.weights[:tokens])

    @functools.cached_property
    def records(self) -> Records:
        """The records, not yet read."""
        records: Records = self.config.records.clone().build()
        return records

    @property
    def content_digest(self) -> str:
        """The records' digest."""
        return self.records.digest

    def split_records(self, split: Split) -> Iterator[Record]:
        """Yields the records of a split in order; raises CorpusError where there are none."""
        one_in, held_out = self.config.validation_one_in, self._held_out_names
        any_yielded = False
        for record in self.records.read():
            if (record.name in held_out) == (split == "validation"):
                any_yielded = True
                yield record
        if not any_yielded:
            message = (
                f"no record is in the {split} split (validation_one_in={one_in}): give more records, or "
                "data.validation_one_in=0 to hold none out"
            )
            raise CorpusError(message)

    @functools.cached_property
    def _held_out_names(self) -> frozenset[str]:
        one_in = self.config.validation_one_in
        if not one_in:
            return frozenset()
        names = [record.name for record in self.records.read()]
        chosen = frozenset(name for name in names if name_hash(name) % one_in == 0)
        # A few records may miss the hash; one of them then stands for the share.
        return chosen or frozenset({min(names, key=name_hash)} if len(names) > 1 else ())

    def held_out(self) -> DataSource | None:
        """Returns the validation split, once through in order; None where nothing is held out."""
        return None if self.config.validation_one_in == 0 else self.once("validation")

    def _once(self, split: Split | None) -> Any:
        cfg = super()._once(split)
        return cfg.set(validation_one_in=0) if split is None else cfg

    def read_examples(self, split: Split) -> Iterator[Example]:
        """Yields the examples of a split's records, without those skipped; raises CorpusError where none is left."""
        skipped, cut, count = [], 0, 0
        for record, example, why in self._read(split):
            if example is None:
                skipped.append((count, f"{record.name}: {why}"))
            else:
                cut += why == "cut"
                yield example
            count += 1
        reading = Reading(count, tuple(skipped), cut)
        if len(skipped) == count:
            message = f"no record can be learned from: {reading.sentence(self.config.sequence_length)}"
            raise CorpusError(message)
        self._read_now[split] = reading

    def _read(self, split: Split) -> Iterator[tuple[Record, Example | None, str]]:
        """Yields each record with its example; without one, why it has none, and with one, "cut" if it lost its end."""
        cfg = self.config
        tokens = cfg.sequence_length + 1
        for record in self.split_records(split):
            try:
                example = self.example_of(record.fields)
                long = len(example.ids) > tokens
                if long and cfg.on_long == "cut":
                    example = self.cut_example(example, tokens)
            except RecordError as error:
                if cfg.on_bad == "stop":
                    message = f"{record.name}: {error}; set data.on_bad=skip to leave such records out"
                    raise CorpusError(message) from error
                yield record, None, str(error)
                continue
            if long and cfg.on_long != "cut":
                self._too_long(record, len(example.ids))
                yield record, None, f"{len(example.ids):,} tokens"
                continue
            yield record, example, "cut" if long else ""

    def _too_long(self, record: Record, length: int) -> None:
        if self.config.on_long == "stop":
            message = (
                f"{record.name}: {length:,} tokens, and a row holds data.sequence_length={self.config.sequence_length} "
                "beside the first; raise it, or set data.on_long to cut or skip"
            )
            raise CorpusError(message)

    @functools.cached_property
    def encoded(self) -> EncodedDocuments:
        """All examples of the split, through the cache; shows what was skipped or cut."""
        encoded = super().encoded
        sentence = self.reading.sentence(self.config.sequence_length)
        if sentence:
            logger.warning("data: %s", sentence)
        return encoded

    @functools.cached_property
    def reading(self) -> Reading:
        """What became of each record of the split, through the cache."""

        def build() -> bytes:
            split = self.config.split
            if split not in self._read_now:
                collections.deque(self.read_examples(split), maxlen=0)
            return json.dumps(self._read_now[split]).encode()

        def parse(payload: bytes) -> Reading:
            count, skipped, cut = json.loads(payload)
            return Reading(int(count), tuple((int(ordinal), str(why)) for ordinal, why in skipped), int(cut))

        return cached("readings", cache_key(self.config.split, self.digest), build, parse)

    def account(self) -> Mapping[str, Any]:
        """Returns how many records there are, how many have no example, and how many lost their ends."""
        examples = self.encoded.num_predictions
        counts = {"records": self.reading.records, "skipped": len(self.reading.skipped), "cut": self.reading.cut}
        return {**counts, "tokens": int(examples.sum())}

    @functools.cached_property
    def _read_now(self) -> dict[Split, Reading]:
        """What became of the splits that this process has read."""
        return {}

    @functools.cached_property
    def _fields(self) -> list[Mapping[str, Any]]:
        """The fields of the records with an example, in the order of the examples."""
        skipped = {ordinal for ordinal, _ in self.reading.skipped}
        records = self.split_records(self.config.split)
        return [record.fields for ordinal, record in enumerate(records) if ordinal not in skipped]

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the columns of the record behind row `index`: of several, of the first with a weighted target."""
        pieces, row = self.pieces(index), self.row(index)
        weighted = np.flatnonzero(row["loss_weights"])
        ends = np.cumsum([piece.length for piece in pieces])
        place = int(np.searchsorted(ends, weighted[0], side="right")) if weighted.size else 0
        return self._fields[pieces[place].document]
