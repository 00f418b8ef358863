"""Examples of any length packed into rows: what sources of text, of chats and of pairs share."""

import abc
import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts.data import DataSource

from kanawa_runtime.data.corpus import Split
from kanawa_runtime.data.encoded import EncodedDocuments, Example, Lengths
from kanawa_runtime.data.encoding import example_shards
from kanawa_runtime.data.packing import BestFitPacking, Packing
from kanawa_runtime.data.shards import ShardHead
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.data.windows import Piece, RowPlan, Within


class PackedSource(DataSource):
    """Packed rows of encoded examples; each weighted token of the split is predicted exactly once an epoch.

    A subclass says where examples come from and how they become tokens: `tokenizer`, `content_digest` and
    `read_examples`. A piece that continues an example takes the last predicted token as its first input, so cutting
    loses context but no target. Building the source reads nothing; examples are read at the first row.
    """

    class Config(DataSource.Config):
        #: The data's digest identifies the tokenizer; its location may change.
        PLACEMENT: ClassVar[tuple[str, ...]] = ("tokenizer_file",)
        #: Fields that enter the digest by their content, not by their value.
        CONTENT: ClassVar[tuple[str, ...]] = ()

        #: A saved tokenizer's file, or a Hugging Face model's folder.
        tokenizer_file: str | None = None
        packing: Packing.Config = BestFitPacking.Config()
        split: Split = "train"
        shuffle: bool = True
        #: "epoch" shuffles all documents of an epoch. "window" shuffles those of each window, in the order that they
        #: are read: rows of text then begin before all of it is encoded.
        shuffle_within: Within = "epoch"
        #: None repeats for ever.
        epochs: Size | None = None
        #: Examples packed and shuffled together; part of the row order.
        window_documents: Size = 4096

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the saved tokenizer to use."""
            self.set(tokenizer_file=file)

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the examples."""

    @property
    @abc.abstractmethod
    def content_digest(self) -> str:
        """Hex digest of what the fields `Config.CONTENT` stand for: the files' content and how they are split."""

    @abc.abstractmethod
    def read_examples(self, split: Split) -> Iterator[Example]:
        """Yields the examples of a split in a fixed order, each of at least two tokens."""

    @functools.cached_property
    def encoded(self) -> EncodedDocuments:
        """All examples of the split, through the cache."""
        return EncodedDocuments(self._encoding, self._shards, self._num_examples)

    @property
    def _encoding(self) -> tuple[str, ...]:
        """Everything that the examples depend on."""
        kind, split = type(self).__qualname__, self.config.split
        return kind, split, self.content_digest, self.tokenizer.digest, self._settings

    def _shards(self, folder: Path) -> Iterator[ShardHead]:
        """Yields the shards of all examples in order, each written to a folder."""
        return example_shards(self.read_examples(self.config.split), repr(self._encoding), self.tokenizer, folder)

    @property
    def _num_examples(self) -> int | None:
        """The number of examples, where rows may be made before all are encoded."""
        return None

    @property
    def _settings(self) -> str:
        """What examples depend on beside their content: every field but those of the row order, as JSON."""
        settings = self._identity()
        for field in ("packing", "split", "shuffle", "shuffle_within", "epochs", "window_documents", "seed"):
            settings.pop(field, None)
        return json.dumps(settings, sort_keys=True)

    def _identity(self) -> dict[str, Any]:
        settings: dict[str, Any] = to_json(self.config)
        # Where files lie doesn't matter; their content enters by digest.
        for field in (*self.config.CONTENT, "tokenizer_file", "encode_processes"):
            settings.pop(field, None)
        # A later field: runs from before it have none.
        if settings["shuffle_within"] == "epoch":
            del settings["shuffle_within"]
        return settings

    @functools.cached_property
    def _packing(self) -> Packing:
        packing: Packing = self.config.packing.clone().build()
        return packing

    @functools.cached_property
    def _plan(self) -> RowPlan:
        cfg = self.config
        return RowPlan(
            Lengths(self.encoded),
            cfg.sequence_length,
            self._packing,
            window_documents=cfg.window_documents,
            seed=cfg.seed,
            shuffle=cfg.shuffle,
            shuffle_within=cfg.shuffle_within,
            epochs=cfg.epochs,
        )

    @functools.cached_property
    def _places(self) -> np.ndarray:
        return np.arange(self.config.sequence_length, dtype=np.int32)

    @property
    def num_rows(self) -> int | None:
        """Rows in all epochs; None when they repeat for ever."""
        return None if self.config.epochs is None else self._plan.num_rows

    @property
    def vocab_size(self) -> int:
        """The tokenizer's."""
        return self.tokenizer.vocab_size

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the content, the tokenizer and every setting of the row order."""
        parts = [self.content_digest, self.tokenizer.digest, self._identity()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def pieces(self, index: int) -> list[Piece]:
        """Returns which parts of which examples row `index` holds, in order."""
        return self._plan.row(index)

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        row = empty_row(self.config.sequence_length, self.tokenizer.pad_id)
        separate, places = self._packing.config.separate_documents, self._places
        filled = 0
        for number, piece in enumerate(self.pieces(index), 1):
            here = slice(filled, filled + piece.length)
            self._write(row, piece, here)
            row["positions"][here] = places[: piece.length] if separate else places[here]
            row["segment_ids"][here] = number if separate else 1
            filled = here.stop
        return row

    def _write(self, row: dict[str, np.ndarray], piece: Piece, here: slice) -> None:
        """Writes a piece's inputs, targets and weights to positions `here` of a row."""
        # A piece of n predictions reads n + 1 ids, of which neighbouring pieces share one.
        ids, weights = self.encoded.piece(piece.document, piece.start, piece.start + piece.length + 1)
        row["input_ids"][here] = ids[:-1]
        row["target_ids"][here] = ids[1:]
        row["loss_weights"][here] = 1.0 if weights is None else weights[1:]

    def held_out(self) -> "DataSource | None":
        """Returns the validation split, once through in order."""
        return self.once("validation")

    def once(self, split: Split | None = None) -> Self | None:
        """Returns the rows of a split, or of all examples, once through in order."""
        rows: Self = self._once(split).build()
        return rows

    def _once(self, split: Split | None) -> Any:
        return self.config.clone().set(split=split or "train", epochs=1, shuffle=False)


def empty_row(length: int, pad_id: int = 0) -> dict[str, np.ndarray]:
    """Returns a row of padding: segment 0 and weight 0 throughout."""
    return {
        "input_ids": np.full(length, pad_id, np.int32),
        "target_ids": np.full(length, pad_id, np.int32),
        "positions": np.zeros(length, np.int32),
        "segment_ids": np.zeros(length, np.int32),
        "loss_weights": np.zeros(length, np.float32),
    }
