"""Rows made of another source's rows, such as with tokens hidden: what they take over from it."""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from kanawa.config import REQUIRED, to_json
from kanawa.contracts.data import DataSource, Split, Tokenizer


class RowsOfSource(DataSource):
    """Row r is made of row r of `source`, and of random numbers of the seed and r.

    A subclass says what it makes: `row`, `vocab_size`; and `source_length` where its rows have another length.
    """

    class Config(DataSource.Config):
        source: DataSource.Config = REQUIRED

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the tokenizer of the source."""
            self.source.set_tokenizer_file(file)

    @property
    def source_length(self) -> int:
        """The length of the source's rows."""
        length: int = self.config.sequence_length
        return length

    @functools.cached_property
    def _source(self) -> DataSource:
        source: DataSource = self.config.source.clone().set(sequence_length=self.source_length).build()
        return source

    @property
    def packed(self) -> bool:
        """The source's."""
        return self._source.packed

    @property
    def is_named(self) -> bool:
        """The source's."""
        return self._source.is_named

    @property
    def source_names(self) -> tuple[str, ...]:
        """The source's."""
        return self._source.source_names

    @property
    def num_rows(self) -> int | None:
        """The source's."""
        return self._source.num_rows

    def account(self) -> Mapping[str, Any]:
        """Returns the source's."""
        return self._source.account()

    def saved(self, row: int) -> dict[str, Any]:
        """Returns the source's."""
        return self._source.saved(row)

    def resume(self, row: int, saved: Mapping[str, Any]) -> None:
        """Resumes the source."""
        self._source.resume(row, saved)

    def changes(self, first: int, end: int) -> Sequence[Mapping[str, Any]]:
        """Returns the source's."""
        return self._source.changes(first, end)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The source's."""
        return self._source.tokenizer

    @property
    def settings(self) -> list[Any]:
        """What rows depend on beside the source, as JSON."""
        settings: dict[str, Any] = to_json(self.config)
        settings.pop("source", None)
        return [settings]

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the source and what is made of it."""
        parts = [self._source.digest, *self.settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def held_out(self) -> Self | None:
        """Returns what is made of the source's held-out rows, the same at each evaluation."""
        return self._of(self._source.held_out())

    def once(self, split: Split | None = None) -> Self | None:
        """Returns what is made of the source's rows of a split, or of all, once."""
        return self._of(self._source.once(split))

    def _of(self, rows: DataSource | None) -> Self | None:
        return None if rows is None else self.config.clone().set(source=rows.config).build()

    def documents(self, split: Split) -> Iterable[bytes] | None:
        """Returns the source's."""
        return self._source.documents(split)
