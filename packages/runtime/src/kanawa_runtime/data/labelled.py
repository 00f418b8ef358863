"""Texts with labels, and tokens with labels: rows in which the labels are the targets."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import kanawa as kn
import numpy as np
from kanawa.contracts.data import DataSource
from kanawa.errors import ConfigError, UsageError, did_you_mean

from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.packing import BestFitPacking, OnePerRow
from kanawa_runtime.data.records.of_data import records_of
from kanawa_runtime.data.records.source import RecordError, RecordSource
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.data.windows import Piece

#: What rows of labels take over from the rows before.
_SIZES = frozenset(DataSource.Config.fields()) | {"tokenizer_file", "packing", "epochs", "shuffle", "window_documents"}


class LabelledTexts(RecordSource):
    """Packed rows of texts, each a segment; the target at its first or last token is the number of its label.

    A record has a text and a label: a name in `labels`, or its number. With the place "tokens" it has a list of words
    and one of as many labels; the first token of a word has its label, and other tokens have none. Texts begin and end
    as the tokenizer says. A text that is too long loses the end of what is said, not what it ends with.
    """

    class Config(RecordSource.Config):
        labels: tuple[str, ...] = kn.REQUIRED
        place: Literal["first", "last", "tokens"] = "first"
        #: The columns of a record.
        text: str = "text"
        label: str = "label"
        words: str = "tokens"
        word_labels: str = "labels"

        def check(self) -> list[str]:
            """Returns what is wrong with the packing."""
            if isinstance(self.packing, BestFitPacking.Config | OnePerRow.Config) and self.packing.separate_documents:
                return super().check()
            kind = type(self.packing).__qualname__.removesuffix(".Config")
            return [f"packing is {kind}, and texts must not be cut or joined; expected BestFitPacking or OnePerRow"]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels."""
        labels: tuple[str, ...] = self.config.labels
        return labels

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        file = self.config.tokenizer_file
        if file is None:
            message = (
                "texts with labels are read by the tokenizer of the model that learns them, and data.tokenizer_file "
                "names none: train a folder that has a tokenizer.json, kanawa train FOLDER --modify classify:labels=… "
                "--data labelled.jsonl, or set data.tokenizer_file"
            )
            raise UsageError(message)
        return load_tokenizer(file)

    def example_of(self, fields: Mapping[str, Any]) -> Example:
        """Returns the tokens of a record, and the number of the label at each, plus 1; raises RecordError."""
        cfg = self.config
        if cfg.place == "tokens":
            words, labels = self._column(fields, cfg.words, list), self._column(fields, cfg.word_labels, list)
            if len(words) != len(labels) or not words:
                why = f"there are {len(words)} words and {len(labels)} labels, expected as many, and at least one"
                raise RecordError(at=cfg.word_labels, why=why)
            return self._of_words(words, labels)
        ids = self.tokenizer.encode(self._column(fields, cfg.text, str))
        return self._whole(ids, None, self._number(self._column(fields, cfg.label, str | int), cfg.label))

    def cut_example(self, example: Example, tokens: int) -> Example:
        """Returns the example without the end of what is said."""
        before, after = len(self.tokenizer.prefix_ids), len(self.tokenizer.suffix_ids)
        assert example.weights is not None
        here = slice(before, tokens - after - 1)
        weights = example.weights[1:][here] if self.config.place == "tokens" else None
        if weights is not None and not weights.any():
            raise RecordError(at=self.config.words, why="no word with a label fits into a row")
        return self._whole(example.ids[here], weights, int(example.weights.max()))

    def _of_words(self, words: Sequence[Any], labels: Sequence[Any]) -> Example:
        ids: list[np.ndarray] = []
        marks: list[np.ndarray] = []
        for place, (word, label) in enumerate(zip(words, labels, strict=True)):
            if not isinstance(word, str):
                raise RecordError(at=f"{self.config.words}[{place}]", why=f"expected a text, found {word!r:.40}")
            own = self.tokenizer.encode(f" {word}" if place else word)
            mark = np.zeros(len(own), np.float32)
            mark[:1] = self._number(label, f"{self.config.word_labels}[{place}]")
            ids.append(own)
            marks.append(mark)
        return self._whole(np.concatenate(ids), np.concatenate(marks), 0)

    def _whole(self, ids: np.ndarray, marks: np.ndarray | None, number: int) -> Example:
        """Returns the ids of a text with what is around them, and one more, which is cut off: rows predict the next."""
        before, after = self.tokenizer.prefix_ids, self.tokenizer.suffix_ids
        whole = np.concatenate([before, ids, after, [self.tokenizer.pad_id]]).astype(np.int32)
        weights = np.zeros(len(whole), np.float32)
        if len(whole) < 2:
            raise RecordError(at=self.config.text, why="the text has no tokens")
        if marks is not None:
            weights[1 + len(before) : 1 + len(before) + len(marks)] = marks
        else:
            weights[1 if self.config.place == "first" else -1] = number
        return Example(whole, weights)

    def _column(self, fields: Mapping[str, Any], name: str, kind: Any) -> Any:
        if name not in fields:
            near = did_you_mean(name, fields)
            raise RecordError(at=name, why=f"there is no such column{near}; found {', '.join(fields) or 'none'}")
        if not isinstance(fields[name], kind):
            expected = {str: "a text", list: "a list"}.get(kind, "a label or its number")
            raise RecordError(at=name, why=f"found {fields[name]!r:.40}, expected {expected}")
        return fields[name]

    def _number(self, label: Any, at: str) -> int:
        """Returns the number of a label, from 1."""
        labels = self.config.labels
        if isinstance(label, int) and 0 <= label < len(labels):
            return label + 1
        if label not in labels:
            near = did_you_mean(label, labels) if isinstance(label, str) else ""
            listed = ", ".join(labels[:12]) + (" …" if len(labels) > 12 else "")
            raise RecordError(at=at, why=f"found {label!r:.40}, expected one of {listed}, or its number{near}")
        number: int = labels.index(label) + 1
        return number

    def _write(self, row: dict[str, np.ndarray], piece: Piece, here: slice) -> None:
        super()._write(row, piece, here)
        marks = row["loss_weights"][here]
        row["target_ids"][here] = np.maximum(marks - 1, 0)
        row["loss_weights"][here] = marks > 0


def rows_of_records(data: Any, kind: type[RecordSource], what: str) -> Any:
    """Returns the config of rows of `kind`, made of the records of `data` in its sizes; raises ConfigError without."""
    if isinstance(data, kind.Config):
        return data.clone()
    records = records_of(data)
    if records is None:
        found = type(data).__qualname__.removesuffix(".Config")
        message = f"{what} are read from records, and the data are {found}; name a file: --data records.jsonl"
        raise ConfigError(message)
    inner = vars(data).get("source", data)
    made = kind.Config(records=records)
    shared = made.fields().keys() & inner.fields().keys() & _SIZES
    made.set(**{name: getattr(inner, name) for name in shared}).set(sequence_length=data.sequence_length)
    # None may be cut.
    return made if isinstance(made.packing, BestFitPacking.Config) else made.set(packing=BestFitPacking.Config())
