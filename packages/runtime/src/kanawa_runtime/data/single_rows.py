"""Rows of one item each, such as a picture or a recording: their order, their splits, and what becomes of bad ones."""

import abc
import functools
import hashlib
import json
import logging
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts import DataSource

from kanawa_runtime.data.corpus import Split
from kanawa_runtime.data.errors import CorpusError, ItemError
from kanawa_runtime.data.permutation import permutation
from kanawa_runtime.data.records.usable import OnBad
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

#: The stream of random numbers of the order; packed sources use 0 and 1, mixtures 2, pictures 4 and 5.
_ORDER = 3
#: Left-out rows that are named; of later ones some, with how many there are.
_NAMED = 3


class Pass(NamedTuple):
    """Which item of the split a row holds, in which epoch."""

    number: int
    epoch: int


class SingleRows(DataSource):
    """Rows of one item each. Each item of the split comes once an epoch, in an order by the seed and the epoch.

    A subclass says how many items the split has, what the row of one is, and what items depend on: `count`,
    `item_row`, `content`. What can't be used stops the run, or is a row of zeros and so of weight 0.
    """

    class Config(DataSource.Config):
        split: Split | Literal["all"] = "train"
        shuffle: bool = True
        #: None repeats for ever.
        epochs: Size | None = None
        #: Whether a bad item stops the run, or leaves a row of weight 0: the other rows stay what they are.
        on_bad: OnBad = "stop"

        def fit(self, model: Any) -> None:
            """Sets sizes to those that a model takes."""
            del model

    #: What to do about a bad item.
    remedy: ClassVar[str] = "leave such rows out with --set data.on_bad=skip"
    #: Rows that were left out so far, by this process.
    num_left_out = 0

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many items the split has."""

    @abc.abstractmethod
    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns item `number` of the split as row `index`; raises ItemError for one that can't be used."""

    @property
    @abc.abstractmethod
    def content(self) -> Any:
        """What items depend on beside the config, as JSON."""

    @property
    def packed(self) -> bool:
        """False: a row is one item."""
        return False

    @property
    def num_rows(self) -> int | None:
        """Items in all epochs; None when they repeat for ever."""
        return None if self.config.epochs is None else self.count * self.config.epochs

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the content and every setting; where files lie enters by their names alone."""
        settings: dict[str, Any] = to_json(self.config)
        for field in self.config.PLACEMENT:
            settings.pop(field, None)
        return hashlib.sha256(json.dumps([self.content, settings], sort_keys=True).encode()).hexdigest()

    def place(self, index: int) -> Pass:
        """Returns which item row `index` holds; raises IndexError past the end."""
        end = self.num_rows
        if index < 0 or (end is not None and index >= end):
            message = f"row {index}: there are rows 0 to {end - 1 if end else 'without end'}"
            raise IndexError(message)
        epoch, number = divmod(index, self.count)
        return Pass(int(self._order(epoch)[number]) if self.config.shuffle else number, epoch)

    @functools.cached_property
    def _order(self) -> Any:
        """The order of the items by epoch; two stay, since rows are read ahead across an epoch's end."""
        return functools.lru_cache(2)(lambda epoch: permutation(self.count, self.config.seed, _ORDER, epoch))

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; one that is left out is of zeros. Raises CorpusError where a bad item stops the run."""
        try:
            return self.item_row(self.place(index).number, index)
        except ItemError as error:
            if self.config.on_bad == "stop":
                message = f"row {index}: {error}; {self.remedy}"
                raise CorpusError(message) from error
            self.num_left_out += 1
            if self.num_left_out <= _NAMED or self.num_left_out.bit_count() == 1:
                logger.warning("row %d is left out, the %d. so far: %s", index, self.num_left_out, error)
            return {name: np.zeros(field.shape, field.dtype) for name, field in self.fields.items() if field}

    def held_out(self) -> Self | None:
        """Returns the validation split, once through in order; None where nothing is held out."""
        rows = self.once("validation")
        return rows if rows.count else None

    def once(self, split: Split | None = None) -> Self:
        """Returns the items of a split, or all, once through in order."""
        rows: Self = self._once(split).build()
        return rows

    def _once(self, split: Split | None) -> Any:
        return self.config.clone().set(split=split or "all", epochs=1, shuffle=False)


class TokenizedRows(SingleRows):
    """Rows with texts, each between what texts of the tokenizer begin and end with."""

    class Config(SingleRows.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("tokenizer_file",)

        #: A saved tokenizer's file, or a Hugging Face model's folder; None is one whose tokens are bytes.
        tokenizer_file: str | None = None

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the saved tokenizer to use."""
            self.set(tokenizer_file=file)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own, or bytes."""
        file = self.config.tokenizer_file
        return ByteTokenizer.Config().build() if file is None else load_tokenizer(file)

    @property
    def vocab_size(self) -> int:
        """The tokenizer's."""
        return self.tokenizer.vocab_size

    def whole_ids(self, text: str, length: int) -> tuple[np.ndarray, bool]:
        """Returns the ids of a text, int32, at most `length` of them, and whether the text's end was cut off."""
        return whole_ids(self.tokenizer, text, length)


def whole_ids(tokenizer: Tokenizer, text: str, length: int) -> tuple[np.ndarray, bool]:
    """Returns a text's ids between what texts of a tokenizer begin and end with, and whether its end was cut off."""
    before, after = tokenizer.prefix_ids, tokenizer.suffix_ids or tokenizer.stop_ids[:1]
    own, room = tokenizer.encode(text), max(length - len(before) - len(after), 0)
    whole = [*before, *own[:room].tolist(), *after][:length]
    return np.asarray(whole, np.int32), len(own) > room
