"""Records with an input and a target text each, as rows for encoder-decoders."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from kanawa.config import REQUIRED, Config, Count, Size
from kanawa.contracts import EncoderDecoderBatch, RowField, Shown
from kanawa.errors import did_you_mean

from kanawa_runtime.data.corpus import is_held_out
from kanawa_runtime.data.errors import CorpusError, ItemError
from kanawa_runtime.data.own_files import address_and_options, placed, with_options
from kanawa_runtime.data.records.addresses import suffix_of
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.formats import RECORD_SUFFIXES, read_rows
from kanawa_runtime.data.records.listing import found_files
from kanawa_runtime.data.records.record import Records
from kanawa_runtime.data.single_rows import TokenizedRows
from kanawa_runtime.data.span_corruption import encoder_decoder_fields, encoder_decoder_row, shown_pair


class TextPair(NamedTuple):
    """The record's name and its texts."""

    name: str
    read: str
    written: str


class TextPairs(TokenizedRows):
    """Rows of one pair each: the encoder reads the input, the decoder writes the target; both end with the end token.

    Records are read into memory. A pair that is too long loses the ends of its texts, or with `cut` false is a bad one.
    """

    batch = EncoderDecoderBatch

    class Config(TokenizedRows.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("tokenizer_file",)

        target_length: Size = 128
        records: Records.Config = REQUIRED
        #: The columns of a record.
        input: str = "input"
        target: str = "target"
        #: What comes before each input, such as "translate English to German: ".
        prefix: str = ""
        #: Whether a text that is too long loses its end; if not, the pair is a bad one.
        cut: bool = True
        #: One record in this many, chosen by the hash of its name, is held out; 0 holds out none.
        validation_one_in: Count = 20
        #: What the decoder begins with; None is the tokenizer's padding.
        start_id: Count | None = None

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> Self | None:
            """Returns the pairs of records with both columns; None for other files, which are read as text."""
            place, options = address_and_options(address)
            root, glob = placed(place)
            own = vars(experiment).get("data")
            cfg = own.clone() if isinstance(own, cls) else cls(records=RecordFiles.Config(files=()))
            length = getattr(own, "sequence_length", cfg.sequence_length)
            cfg.set(records=RecordFiles.Config(files=(glob,), root=root), sequence_length=length)
            if {"input", "target"} & options.keys() or _has_columns(place, {cfg.input, cfg.target}):
                return with_options(cfg, options, address)
            return None

    @functools.cached_property
    def _records(self) -> Records:
        cfg: Any = self.config.records.clone()
        if self.config.on_bad == "skip" and "on_bad" in cfg.fields():
            cfg.set(on_bad="skip")
        records: Records = cfg.build()
        return records

    @functools.cached_property
    def _listing(self) -> tuple[list[TextPair], list[str]]:
        problems: list[str] = []
        pairs = list(self._usable(problems))
        if not pairs:
            first = f"; the first problem: {problems[0]}" if problems else ""
            message = f"{self._records.describe()} has no pair of {self.config.input} and {self.config.target}{first}"
            raise CorpusError(message)
        return pairs, problems

    def _usable(self, problems: list[str]) -> Iterator[TextPair]:
        cfg = self.config
        for record in self._records.unchanged():
            problem = self._problem(record.fields)
            if not problem:
                yield TextPair(record.name, cfg.prefix + record.fields[cfg.input], record.fields[cfg.target])
            elif cfg.on_bad == "stop":
                message = f"{record.name}: {problem}; leave such records out with data.on_bad=skip"
                raise CorpusError(message)
            else:
                problems.append(f"{record.name}: {problem}")

    def _problem(self, fields: Mapping[str, Any]) -> str:
        for name in (self.config.input, self.config.target):
            if name not in fields:
                return f"there is no column {name}{did_you_mean(name, fields)}; it has {', '.join(fields) or 'none'}"
            if not isinstance(fields[name], str) or not fields[name].strip():
                return f"{name} is {fields[name]!r:.40}, expected a text"
        return ""

    @functools.cached_property
    def _split(self) -> list[TextPair]:
        pairs, one_in, split = self._listing[0], self.config.validation_one_in, self.config.split
        if split == "all":
            return pairs
        return [pair for pair in pairs if is_held_out(pair.name, one_in) == (split == "validation")]

    @property
    def count(self) -> int:
        """The pairs of the split; raises CorpusError where it has none to train on."""
        if not self._split and self.config.split == "train":
            message = f"all {len(self._listing[0])} pairs are held out; set data.validation_one_in=0, or provide more"
            raise CorpusError(message)
        return len(self._split)

    @property
    def content(self) -> Any:
        """The digests of the records and the tokenizer."""
        return [self._records.digest, self.tokenizer.digest]

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """Ids and segments of both sides; targets and their weights."""
        return encoder_decoder_fields(self.config.sequence_length, self.config.target_length)

    def account(self) -> Mapping[str, Any]:
        """Returns how many records there are, and how many were left out."""
        pairs, problems = self._listing
        scan = self._records.scan
        counts = {"records": len(pairs) + len(problems), "skipped": len(problems), **scan.unreadable()}
        return {**counts, "reasons": [*scan.problems, *problems[:3]]}

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the pair's name and texts by their columns."""
        pair = self._split[self.place(index).number]
        return {"name": pair.name, self.config.input: pair.read, self.config.target: pair.written}

    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns a pair's ids; raises ItemError for one that is too long where none is cut."""
        del index
        cfg, pair = self.config, self._split[number]
        pad = self.tokenizer.pad_id
        lengths = {"sequence_length": cfg.sequence_length, "target_length": cfg.target_length}
        sides = []
        for text, (name, length) in zip((pair.read, pair.written), lengths.items(), strict=True):
            whole, was_cut = self.whole_ids(text, length)
            if was_cut and not cfg.cut:
                message = f"{pair.name}: the text {text!r:.40} has more ids than data.{name}={length}"
                raise ItemError(message)
            sides.append(whole)
        start = pad if cfg.start_id is None else cfg.start_id
        return encoder_decoder_row(sides[0], sides[1], start, pad, (cfg.sequence_length, cfg.target_length))

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown:
        """Returns both texts."""
        return shown_pair(self.tokenizer, row)


def _has_columns(address: str, columns: set[str]) -> bool:
    """Returns whether files are of records, and the first one that can be read has the columns."""
    root, glob = placed(address)
    files = [file for file in found_files([glob], root) if suffix_of(file.name) in RECORD_SUFFIXES]
    rows = (row for file in files for row in read_rows(file.address))
    return columns <= next((row.fields.keys() for row in rows if not row.problem), set())
