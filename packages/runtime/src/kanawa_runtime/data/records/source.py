"""Packed rows of records: which are held out, which don't fit and what becomes of them, and the record behind a row."""

import abc
import functools
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from kanawa.config import REQUIRED, Count, Size, from_json, to_json
from kanawa.contracts.data import DataSource
from kanawa.errors import UsageError

from kanawa_runtime.data.corpus import Split, is_held_out, name_hash
from kanawa_runtime.data.encoded import EncodedDocuments, Example
from kanawa_runtime.data.encoding import BatchEncoder, batch_key, batches, default_processes, encoded_shards
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.packed import PackedSource
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.record import Record, Records, read_columns, stored_columns
from kanawa_runtime.data.shards import VERSION, Outcome, ShardHead, write_shard

logger = logging.getLogger(__name__)

#: Columns in a shard, as JSON: a template takes longer for them than a tokenizer for text.
BATCH_BYTES = 1 << 22
#: So many bad records are shown with their places.
_SHOWN = 3
_MOST_CHARACTERS = 1000
#: So many times `validation_one_in` records never all miss the hash.
_FEW = 64


class RecordError(UsageError):
    """A record can't be learned from; `at` is the column, with the place in it."""

    def __init__(self, at: str, why: str) -> None:
        super().__init__(f"{at}: {why}")
        self.at = at
        self.why = why


class RecordSource(PackedSource):
    """Packed rows of records, each an example. A subclass says what the example of a record is: `example_of`.

    An example that is longer than a row loses its end, is skipped, or stops the run, as `on_long` says; a record that
    can't be learned from is skipped or stops it, as `on_bad` says. Both are counted and shown. Records are encoded in
    shards and side by side, as text is; what examples depend on beside the record and the config is `other_content`.
    """

    class Config(PackedSource.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("encode_processes",)
        CONTENT: ClassVar[tuple[str, ...]] = ("records",)

        records: Records.Config = REQUIRED
        #: One record in this many, chosen by the hash of its name, is held out; 0 holds out none.
        validation_one_in: Count = 20
        on_bad: Literal["stop", "skip"] = "stop"
        on_long: Literal["cut", "skip", "stop"] = "cut"
        #: Processes that encode; None takes the cores of this machine, at most eight. Few records need none.
        encode_processes: Size | None = None

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
    def other_content(self) -> tuple[str, ...]:
        """Digests of what examples depend on beside their record, the tokenizer and the config."""
        return ()

    @property
    def content_digest(self) -> str:
        """The digests of the records and of other content."""
        return " ".join([self.records.digest, *self.other_content])

    def split_records(self, split: Split) -> Iterator[Record]:
        """Yields the records of a split in order; raises CorpusError where there are none."""
        one_in, lone = self.config.validation_one_in, self._lone_name
        any_yielded = False
        for record in self.records.unchanged():
            held_out = record.name == lone if lone else is_held_out(record.name, one_in)
            if held_out == (split == "validation"):
                any_yielded = True
                yield record
        if not any_yielded and not self.records.scan.documents:
            message = f"{self.records.describe()} hold none: every file is empty or left out as bad"
            raise CorpusError(message)
        if not any_yielded:
            message = (
                f"no record is in the {split} split (validation_one_in={one_in}): give more records, or "
                "data.validation_one_in=0 to hold none out"
            )
            raise CorpusError(message)

    @functools.cached_property
    def _lone_name(self) -> str:
        """The one record that is held out where there are so few that the hash may miss them all; "" of others."""
        one_in, count = self.config.validation_one_in, self.records.scan.documents
        if not one_in or not 1 < count <= _FEW * one_in:
            return ""
        least = min(
            (record.name for record in self.records.read()),
            key=lambda name: (name_hash(name) % one_in > 0, name_hash(name)),
        )
        return "" if is_held_out(least, one_in) else least

    def held_out(self) -> DataSource | None:
        """Returns the validation split, once through in order; None where nothing is held out."""
        return None if self.config.validation_one_in == 0 else self.once("validation")

    def _once(self, split: Split | None) -> Any:
        cfg = super()._once(split)
        return cfg.set(validation_one_in=0) if split is None else cfg

    def read_examples(self, split: Split) -> Iterator[Example]:
        """Yields the examples of a split's records, without those skipped; raises CorpusError for a bad record."""
        made = (self.example_or_reason(record)[0] for record in self.split_records(split))
        return (example for example in made if example is not None)

    def _shards(self, folder: Path) -> Iterator[ShardHead]:
        records = ((record.name, stored_columns(record.fields)) for record in self.split_records(self.config.split))
        processes = self.config.encode_processes or default_processes()
        sized = batches(records, lambda record: len(record[1]), BATCH_BYTES)
        return encoded_shards(sized, RecordEncoder(self), folder, processes)

    def example_or_reason(self, record: Record) -> tuple[Example | None, str]:
        """Returns a record's example; without one, why it has none, and with one, "cut" if it lost its end.

        Raises CorpusError for a record that stops the run.
        """
        cfg = self.config
        tokens = cfg.sequence_length + 1
        try:
            example = self.example_of(record.fields)
            length = self.tokens_in_row(example)
            long = length > tokens
            if long and cfg.on_long == "cut":
                example = self.cut_example(example, tokens)
        except RecordError as error:
            if cfg.on_bad == "stop":
                message = f"{record.name}: {error}; set data.on_bad=skip to leave such records out"
                raise CorpusError(message) from error
            return None, str(error)
        if long and cfg.on_long != "cut":
            self._too_long(record, length)
            return None, f"{length:,} tokens, and a row holds {tokens - 1:,}"
        return example, "cut" if long else ""

    def tokens_in_row(self, example: Example) -> int:
        """Returns how many tokens of an example a row has to hold, the first included."""
        return len(example.ids)

    def _too_long(self, record: Record, length: int) -> None:
        if self.config.on_long == "stop":
            message = (
                f"{record.name}: {length:,} tokens, and a row holds data.sequence_length={self.config.sequence_length} "
                "beside the first; raise it, or set data.on_long to cut or skip"
            )
            raise CorpusError(message)

    @functools.cached_property
    def encoded(self) -> EncodedDocuments:
        """All examples of the split, through the cache; shows what was skipped or cut.

        Raises CorpusError where no record can be learned from.
        """
        encoded = super().encoded
        reading = _reading(encoded)
        sentence = _sentence(reading, self.config.sequence_length)
        if reading.skipped == reading.records:
            message = f"no record can be learned from: {sentence}"
            raise CorpusError(message)
        if sentence:
            logger.warning("data: %s", sentence)
        return encoded

    @property
    def reading(self) -> Outcome:
        """What became of the records of the split."""
        return _reading(self.encoded)

    def account(self) -> Mapping[str, Any]:
        """Returns how many records there are, how many have no example, and how many lost their ends."""
        reading, scan = self.reading, self.records.scan
        counts = {"records": reading.records, "skipped": reading.skipped, "cut": reading.cut, **scan.unreadable()}
        tokens = sum(head.tokens - head.examples for head in self.encoded.heads)
        return {**counts, "tokens": tokens, "reasons": [*scan.problems, *reading.reasons]}

    def columns(self, document: int) -> dict[str, Any]:
        """Returns the columns of the record behind an example."""
        return read_columns(self.encoded.columns(document))

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the columns of the record behind row `index`: of several, of the first with a weighted target."""
        pieces, row = self.pieces(index), self.row(index)
        weighted = np.flatnonzero(row["loss_weights"])
        ends = np.cumsum([piece.length for piece in pieces])
        place = int(np.searchsorted(ends, weighted[0], side="right")) if weighted.size else 0
        return self.columns(pieces[place].document)


class RecordEncoder(BatchEncoder):
    """Encodes batches of records, each a name and its columns, as `source` does."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source

    def __reduce__(self) -> tuple[Any, ...]:
        """Takes the source's config: other processes read its tokenizer and template again, but no record."""
        # A class of records may be that of a script, which can't be imported there.
        cfg = self._source.config.clone().set(records=RecordFiles.Config(files=()))
        return _record_encoder, (json.dumps(to_json(cfg)),)

    @functools.cached_property
    def _depends_on(self) -> str:
        source = self._source
        parts = type(source).__qualname__, source.tokenizer.digest, *source.other_content, source._settings
        return f"records {VERSION} {json.dumps(parts)}"

    def key(self, batch: list[tuple[str, bytes]]) -> str:
        """Returns a digest of the records and all that their examples depend on."""
        return batch_key(self._depends_on, (part for name, columns in batch for part in (name.encode(), columns)))

    def encode(self, batch: list[tuple[str, bytes]], key: str, folder: Path) -> ShardHead:
        """Encodes records and writes their shard; raises CorpusError for one that stops the run."""
        source, tokenizer = self._source, self._source.tokenizer
        examples: list[Example] = []
        kept: list[bytes] = []
        reasons: list[str] = []
        cut = 0
        for name, columns in batch:
            example, why = source.example_or_reason(Record(name, read_columns(columns)))
            if example is not None:
                examples.append(example)
                kept.append(columns)
                cut += why == "cut"
            elif len(reasons) < _SHOWN:
                reasons.append(f"{name}: {why}"[:_MOST_CHARACTERS])
        outcome = Outcome(len(batch), len(batch) - len(examples), cut, tuple(reasons))
        return write_shard(
            folder, key, examples, tokenizer.vocab_size, tokenizer.byte_lengths, outcome=outcome, columns=kept
        )


def _record_encoder(config: str) -> RecordEncoder:
    return RecordEncoder(from_json(json.loads(config)).build())


def _reading(encoded: EncodedDocuments) -> Outcome:
    found = [head.outcome for head in encoded.heads]
    reasons = [reason for each in found for reason in each.reasons][:_SHOWN]
    records, skipped, cut = (sum(column) for column in list(zip(*found, strict=True))[:3])
    return Outcome(records, skipped, cut, tuple(reasons))


def _sentence(reading: Outcome, limit: int) -> str:
    """Returns what to show; "" where every record is learned whole."""
    parts = []
    if reading.skipped:
        few = "; ".join(reading.reasons)
        more = "; …" if reading.skipped > len(reading.reasons) else ""
        parts.append(f"{reading.skipped:,} of {reading.records:,} records skipped ({few}{more})")
    if reading.cut:
        parts.append(f"{reading.cut:,} of {reading.records:,} records cut to data.sequence_length={limit}")
    return ", ".join(parts)
