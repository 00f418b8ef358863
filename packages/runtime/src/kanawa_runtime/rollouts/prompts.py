"""Prompts and answers from the rows of any data source, each prompt once for each member of its group."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from kanawa.config import Size
from kanawa.contracts import Batch, DataSource
from kanawa.contracts.data import Tokenizer
from kanawa.errors import UsageError

NO_QUESTION = (
    "set rollouts.prompt_tokens=N to have the first N tokens of each row for its prompt, or take data whose rows weigh "
    "their answers alone"
)


class Question(NamedTuple):
    """Ids before the first weighted target, and the weighted targets."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class Asked(NamedTuple):
    """A question, and the columns of the data's record that it was made of."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    record: Mapping[str, Any]


def question(batch: Batch, row: int, prompt_tokens: int | None = None) -> Question:
    """Returns the question in a row; of one without weighted targets all of it is the prompt.

    Of rows that hold several sequences it is that of the first with a weighted target. With `prompt_tokens` the prompt
    is so many of its first tokens. Raises UsageError where every target is weighted: such a row has no question.
    """
    ids, targets = np.asarray(batch.input_ids[row]), np.asarray(batch.target_ids[row])
    segments = np.ones(ids.shape, np.int32) if batch.segment_ids is None else np.asarray(batch.segment_ids[row])
    weighted = np.flatnonzero(batch.loss_weights[row])
    if not weighted.size:
        return Question(tuple(ids[segments > 0].tolist()), ())
    own = segments == segments[weighted[0]]
    last = weighted[0]
    if prompt_tokens is not None:
        last = np.flatnonzero(own)[:prompt_tokens][-1]
        weighted = weighted[weighted >= last]
    elif own.argmax() == last and own[weighted].sum() == own.sum():
        message = (
            f"row {row} of the batch has no question: every token of it is to be learned, so that its first one alone "
            f"would be the prompt; {NO_QUESTION}"
        )
        raise UsageError(message)
    before = np.arange(ids.size) <= last
    return Question(tuple(ids[own & before].tolist()), tuple(targets[weighted[own[weighted]]].tolist()))


class Grouped(DataSource):
    """The rows of `source`, each `group_size` times in a batch of `batch_size`, for `updates` batches.

    Where rollouts are trained on several times, the batches after the first are only counted, and hold the same rows.
    With `attempts`, each group of a batch has so many rows to try: those after the first are read by `asked`.
    """

    class Config(DataSource.Config):
        source: DataSource.Config
        group_size: Size
        batch_size: Size
        updates: Size = 1
        attempts: Size = 1

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._source: DataSource = cfg.source.build()

    @property
    def packed(self) -> bool:
        """The source's."""
        return self._source.packed

    @property
    def _groups(self) -> int:
        groups: int = self.config.batch_size // self.config.group_size
        return groups

    @property
    def num_rows(self) -> int | None:
        """The source's, as often as they come; those that don't fill a batch are dropped."""
        rows = self._source.num_rows
        if rows is None:
            return None
        batches: int = rows // (self._groups * self.config.attempts)
        return batches * self._groups * int(self.config.group_size * self.config.updates)

    @property
    def vocab_size(self) -> int:
        """The source's."""
        return self._source.vocab_size

    @property
    def digest(self) -> str:
        """The source's: how often a row comes is part of the experiment."""
        return self._source.digest

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The source's."""
        return self._source.tokenizer

    def held_out(self) -> DataSource | None:
        """The source's, each row once."""
        return self._source.held_out()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns the row of the source at this place."""
        return self._source.row(self._source_row(index))

    def account(self) -> Mapping[str, Any]:
        """Returns the source's."""
        return self._source.account()

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the record of the source at this place."""
        return self._source.record(self._source_row(index))

    def asked(self, index: int, attempt: int, prompt_tokens: int | None) -> Asked:
        """Returns the question at this place, or the one that its group tries after so many others."""
        return asked(self._source, self._source_row(index, attempt), prompt_tokens)

    def _source_row(self, index: int, attempt: int = 0) -> int:
        batch, place = divmod(index, self.config.batch_size)
        wave: int = batch // self.config.updates * self.config.attempts + attempt
        return wave * self._groups + int(place // self.config.group_size)

    def saved(self, row: int) -> dict[str, Any]:
        """Returns the source's."""
        return self._source.saved(self._read_before(row))

    def resume(self, row: int, saved: Mapping[str, Any]) -> None:
        """Resumes the source."""
        self._source.resume(self._read_before(row), saved)

    def changes(self, first: int, end: int) -> Sequence[Mapping[str, Any]]:
        """Returns the source's; their rows are the source's own."""
        return self._source.changes(self._read_before(first), self._read_before(end))

    def _read_before(self, row: int) -> int:
        """Returns how many rows of the source are read before the batch that begins with `row`."""
        batches: int = -(-row // (self.config.batch_size * self.config.updates))
        return batches * self._groups * int(self.config.attempts)


def asked(source: DataSource, index: int, prompt_tokens: int | None) -> Asked:
    """Returns the question in a row of a source, with the columns of its record; raises as `question` does."""
    row = source.row(index)
    arrays: list[Any] = [row[name][None] if row.get(name) is not None else None for name in Batch._fields]
    batch = Batch(*arrays)
    return Asked(*question(batch, 0, prompt_tokens), source.record(index))
