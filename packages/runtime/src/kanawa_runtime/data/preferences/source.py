"""Packed rows of whole pairs: two completions of one prompt, or one judged completion beside a mismatched one."""

import abc
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from kanawa.config import Size
from kanawa.contracts import PreferenceBatch
from kanawa.contracts.data import RowField
from kanawa.errors import did_you_mean

from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.packed import empty_row
from kanawa_runtime.data.packing import BestFitPacking, OnePerRow, Packing
from kanawa_runtime.data.preferences.in_halves import InHalves
from kanawa_runtime.data.preferences.reference import (
    DIGEST,
    HOW_TO_WRITE,
    MISMATCHED,
    Segment,
    model_of,
    weights_digest,
)
from kanawa_runtime.data.records.source import RecordError
from kanawa_runtime.data.windows import RowPlan

#: What stands between the two sequences of an example, instead of a weight: the label of the first one.
_GOOD, _BAD = 2.0, 3.0


class PairedSource(ChatSource):
    """Base of rows that hold whole pairs of segments, at most `pairs_per_row`; see `PreferenceBatch`.

    A segment is written as `ChatSource` writes a conversation with one learned answer. Its last token is an input too.
    A pair that is longer than a row is skipped, or stops the run, as `on_long` says: cut, it would not be compared.
    """

    batch = PreferenceBatch
    #: A row is as many times `sequence_length` long: 2 gives the second segments of its pairs the second half.
    halves: ClassVar[int] = 1

    class Config(ChatSource.Config):
        #: A static size: of the arrays of labels and of sums by segment.
        pairs_per_row: Size = 16
        on_long: Literal["cut", "skip", "stop"] = "skip"
        #: Whether records bring what the reference policy gave both completions, the sums of their log-probabilities.
        reference_columns: bool = False
        #: The run or folder whose sums they have to be; "" takes those of any one model.
        reference_source: str = ""
        CONTENT: ClassVar[tuple[str, ...]] = (*ChatSource.Config.CONTENT, "reference_source")
        PLACEMENT: ClassVar[tuple[str, ...]] = ("reference_source",)

        def check(self) -> list[str]:
            """Returns what is wrong with packing and lengths."""
            problems = super().check()
            if not isinstance(self.packing, BestFitPacking.Config | OnePerRow.Config):
                kind = type(self.packing).__qualname__.removesuffix(".Config")
                problems.append(f"packing is {kind}, and pairs must not be cut; expected BestFitPacking or OnePerRow")
            if not self.packing.separate_documents:
                problems.append("packing.separate_documents is false, but each completion has to be a segment")
            if self.on_long == "cut":
                problems.append("on_long is cut, and a pair can't be compared once one side is cut; give skip or stop")
            return problems

    #: The columns of the sums, as trl names those of pairs.
    sum_columns: ClassVar[tuple[str, str]]

    @abc.abstractmethod
    def pair(self, document: int) -> tuple[Segment, Segment, float]:
        """Returns both segments of an example, and the label of the first."""

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """Those of rows of tokens, and the label of each pair."""
        pairs = self.config.pairs_per_row
        labels, sums = (RowField((count,), "float32", (None,)) for count in (pairs, 2 * pairs))
        known = sums if self.config.reference_columns else None
        own = {**super().fields, "labels": labels, "reference_logprobs": known}
        return {name: own[name] for name in PreferenceBatch._fields}

    def joined(self, first: Example, second: Example, label: float = _GOOD) -> Example:
        """Returns one example of two sequences, between them what says where the second begins."""
        parts = [(example.ids, np.ones(len(example.ids)) if example.weights is None else example.weights)
                 for example in (first, second)]  # fmt: skip
        (a, weighed_a), (b, weighed_b) = parts
        pad = self.tokenizer.pad_id
        return Example(np.concatenate([a, [pad], b]), np.concatenate([weighed_a, [label], weighed_b]))

    def completed(self, fields: Mapping[str, Any], column: str) -> Example:
        """Returns the sequence that ends with a column's completion; raises RecordError that names the column."""
        if column not in fields:
            raise RecordError(at=column, why=f"there is no such column{did_you_mean(column, fields)}")
        value, rest = fields[column], {k: v for k, v in fields.items() if k in ("tools", "chat_template_kwargs")}
        if isinstance(value, str) != isinstance(fields.get("prompt", value), str):
            raise RecordError(at=column, why="prompt and completion have to be both texts, or both messages")
        try:
            if "prompt" in fields:
                return super().example_of({"prompt": fields["prompt"], "completion": value, **rest})
            if isinstance(value, str):
                raise RecordError(at="prompt", why=f"there is no such column; found {_listed(fields)}")
            return super().example_of({"messages": value, **rest})
        except RecordError as error:
            if error.at in ("completion", "messages"):
                raise RecordError(at=column, why=error.why) from error
            raise

    # --- rows --------------------------------------------------------------------------------------------------

    def _halves(self, document: int) -> tuple[Segment, Segment, float]:
        """Returns both sequences of an example as they were read, and what stands between them."""
        example = self.encoded.example(document)
        ids, weights = example.ids, np.ones(0) if example.weights is None else example.weights
        between = int(np.argmax(weights >= _GOOD))
        first = Segment(ids[:between], weights[:between])
        return first, Segment(ids[between + 1 :], weights[between + 1 :]), float(weights[between])

    @property
    def _lengths(self) -> np.ndarray:
        """Positions that each pair takes, uint32 [examples]."""
        return self.encoded.num_predictions

    @functools.cached_property
    def _plan(self) -> RowPlan:
        cfg = self.config
        # As if none were shorter: then no more than so many share a row.
        least = -(-cfg.sequence_length // cfg.pairs_per_row)
        return RowPlan(
            np.maximum(self._lengths, least), cfg.sequence_length, self._packing,
            window_documents=cfg.window_documents, seed=cfg.seed, shuffle=cfg.shuffle, epochs=cfg.epochs,
        )  # fmt: skip

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        length = self.config.sequence_length
        row = empty_row(self.halves * length, self.tokenizer.pad_id)
        row["labels"] = np.zeros(self.config.pairs_per_row, np.float32)
        sums = np.zeros(2 * self.config.pairs_per_row, np.float32)
        if self.config.reference_columns:
            row["reference_logprobs"] = sums
        ends = [half * length for half in range(self.halves)]
        for number, piece in enumerate(self.pieces(index)):
            if self.config.reference_columns:
                sums[2 * number : 2 * number + 2] = self._sums(piece.document)
            first, second, row["labels"][number] = self.pair(piece.document)
            for half, (ids, weights) in enumerate((first, second), 1):
                at = ends[half % self.halves - 1]
                here, targets = slice(at, at + len(ids)), slice(at, at + len(ids) - 1)
                row["input_ids"][here] = ids
                row["target_ids"][targets], row["loss_weights"][targets] = ids[1:], weights[1:]
                row["positions"][here], row["segment_ids"][here] = np.arange(len(ids)), 2 * number + half
                ends[half % self.halves - 1] = here.stop
        return row

    def check_sums(self, fields: Mapping[str, Any], first: Example, second: Example) -> None:
        """Raises RecordError where records have to bring the reference's sums, and this one doesn't, or of others."""
        if not self.config.reference_columns:
            return
        for column in self.sum_columns:
            value = fields.get(column)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                found = f"it is {value!r:.40}" if column in fields else "there is no such column"
                why = f"{found}, expected the reference's log-probability of the completion; {HOW_TO_WRITE}"
                raise RecordError(at=column, why=why)
        if DIGEST in fields and model_of(fields[DIGEST], first, second) is None:
            why = (
                "the record, its template or its tokenizer isn't what the reference's log-probabilities were computed "
                f"of; {HOW_TO_WRITE}"
            )
            raise RecordError(at=DIGEST, why=why)

    def check_start(self, folder: Path | None) -> None:
        """Raises RowError where records bring sums of another model than the folder's, unless `reference_source` does.

        Sums without a digest, as other tools write them, aren't checked.
        """
        if not self.config.reference_columns or self.config.reference_source or not self._reference_model:
            return
        begun = "new parameters" if folder is None else f"{folder} ({weights_digest(folder)})"
        if folder is None or weights_digest(folder) != self._reference_model:
            message = (
                f"{DIGEST}: the reference's log-probabilities are of the model {self._reference_model}, and training "
                f"begins with {begun}; {HOW_TO_WRITE}, or name the folder that they are of: "
                "reference=precomputed,source=FOLDER"
            )
            raise RowError(message)

    def _sums(self, document: int) -> list[float]:
        """Returns the reference's sums of a pair; raises RowError where they are of another model than the others'."""
        record = self.columns(document)
        model = str(record.get(DIGEST, "")).partition(":")[0]
        if model != self._reference_model:
            message = (
                f"{DIGEST}: some of the reference's log-probabilities are of the model {model or 'without a digest'}, "
                f"expected {self._reference_model or 'none with a digest'}; {HOW_TO_WRITE}"
            )
            raise RowError(message)
        return [record[column] for column in self.sum_columns]

    @functools.cached_property
    def _reference_model(self) -> str:
        if self.config.reference_source:
            return weights_digest(self.config.reference_source)
        return str(self.columns(0).get(DIGEST, "")).partition(":")[0]

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the columns of the record behind the first pair of row `index`."""
        return self.columns(self.pieces(index)[0].document)


class PairSource(PairedSource):
    """Packed rows of `prompt`, `chosen` and `rejected`: texts or messages; without a prompt, whole conversations.

    A pair whose completions are equal, or one of which is empty, can't be learned from: see `on_bad`.
    """

    sum_columns = ("ref_chosen_logps", "ref_rejected_logps")

    def example_of(self, fields: Mapping[str, Any]) -> Example:
        """Returns both sequences, the chosen one first; raises RecordError."""
        chosen, rejected = self.completed(fields, "chosen"), self.completed(fields, "rejected")
        if np.array_equal(chosen.ids, rejected.ids):
            raise RecordError(at="chosen", why="it equals `rejected`, so that there is nothing to prefer")
        self.check_sums(fields, chosen, rejected)
        return self.joined(chosen, rejected)

    def pair(self, document: int) -> tuple[Segment, Segment, float]:
        """Returns the chosen and the rejected one."""
        first, second, _ = self._halves(document)
        return first, second, 1.0


class JudgedSource(PairedSource):
    """Packed rows of `prompt`, `completion` and `label`, true or false, each beside a mismatched completion.

    That is the completion of the record before, within blocks of `mismatch_within` records, as long as it fits; KTO
    measures with it how far the policy is from its reference. Records with the reference's sums name its ids
    themselves, in the column `mismatched_ids`. Judged completions fill the first half of a row, mismatched ones the
    second, so that the loss computes these without gradients; each half is `sequence_length` long.
    """

    halves = 2

    class Config(PairedSource.Config):
        mismatch_within: Size = 1024

    sum_columns = ("ref_completion_logps", "ref_mismatched_logps")

    def example_of(self, fields: Mapping[str, Any]) -> Example:
        """Returns the sequence, and its prompt with the place of a mismatched completion; raises RecordError."""
        if "prompt" not in fields:
            raise RecordError(at="prompt", why=f"there is no such column; found {_listed(fields)}")
        if not isinstance(fields.get("label"), bool | int) or fields["label"] not in (0, 1):
            found = "there is no such column" if "label" not in fields else f"it is {fields['label']!r:.40}"
            raise RecordError(at="label", why=f"{found}, expected true or false; found {_listed(fields)}")
        own = self.completed(fields, "completion")
        assert own.weights is not None
        begin = int(np.argmax(own.weights > 0))
        weights = own.weights[: begin + 1]
        asked = Example(own.ids[: begin + 1], weights)
        if self.config.reference_columns:
            ids = fields.get(MISMATCHED)
            if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
                raise RecordError(at=MISMATCHED, why=f"expected a list of ids, found {ids!r:.40}; {HOW_TO_WRITE}")
            asked = Example(*_after(Segment(asked.ids, weights), np.asarray(ids, np.int32)))
            self.check_sums(fields, own, asked)
        return self.joined(own, asked, _GOOD if fields["label"] else _BAD)

    def pair(self, document: int) -> tuple[Segment, Segment, float]:
        """Returns the judged completion, and the one before it after the same prompt."""
        own, asked, label = self._halves(document)
        if self.config.reference_columns:
            return own, asked, 1.0 if label == _GOOD else -1.0
        other = self._halves(self._other(document))[0]
        # At least one token: there was room for one when the record was read.
        room = self.config.sequence_length - len(asked.ids) + 1
        answer = other.ids[other.weights > 0][:room]
        return own, _after(asked, answer), 1.0 if label == _GOOD else -1.0

    def _other(self, document: int) -> int:
        within = self.config.mismatch_within
        block = document // within * within
        return int(block + (document - block - 1) % min(within, self._count - block))

    def _identity(self) -> dict[str, Any]:
        settings = super()._identity()
        # A later field: runs from before it have none.
        if not settings["reference_columns"]:
            del settings["reference_columns"]
        # Rows of earlier versions had both kinds of completions side by side.
        return {**settings, "halves": self.halves}

    @property
    def _count(self) -> int:
        return len(self.encoded.num_predictions)

    @property
    def _lengths(self) -> np.ndarray:
        pairs = (self.pair(document) for document in range(self._count))
        return np.asarray([(len(first.ids), len(second.ids)) for first, second, _ in pairs], np.int64)

    @functools.cached_property
    def _packing(self) -> Packing:
        packing: Packing = InHalves.Config(alone=isinstance(self.config.packing, OnePerRow.Config)).build()
        return packing

    def tokens_in_row(self, example: Example) -> int:
        """Returns the tokens of the longer sequence, and one."""
        assert example.weights is not None
        first = int(np.argmax(example.weights >= _GOOD))
        return max(first, len(example.ids) - first - 1) + 1

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """Those of pairs, whose arrays of tokens are of two halves."""
        own, length = super().fields, self.halves * self.config.sequence_length
        # Of tokens are those of `empty_row`.
        return {
            name: field._replace(shape=(length,)) if field is not None and name in empty_row(0) else field
            for name, field in own.items()
        }


def _after(asked: Segment, answer: np.ndarray) -> Segment:
    """Returns a prompt, which ends with the first id of its own completion, with another completion."""
    weights = np.concatenate([asked.weights[:-1], np.ones(len(answer), np.float32)])
    return Segment(np.concatenate([asked.ids[:-1], answer]), weights)


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(fields) or "none"
