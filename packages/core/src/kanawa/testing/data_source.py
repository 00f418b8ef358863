"""Conformance of a data source: rows are a pure function of their index, with the shapes and types of the contract."""

from typing import Any

import numpy as np
import pytest

from kanawa.contracts import Batch, DataSource
from kanawa.testing.conformance import Conformance

#: Rows looked at: the first, some in a row, and one far from anything that was asked before.
_INDICES = (0, 1, 2, 3, 17)


def _contents(source: DataSource) -> list[bytes]:
    """Returns each row as bytes, sorted; of packed rows, where neighbours depend on the split, each token."""
    rows = [source.row(index) for index in range(source.num_rows or 0)]
    if source.packed and "segment_ids" in source.fields:
        return sorted(token.tobytes() for row in rows for token in row["input_ids"][row["segment_ids"] > 0])
    return sorted(b"".join(np.asarray(row[name]).tobytes() for name in sorted(row)) for row in rows)


class DataSourceConformance(Conformance):
    """Subclasses return a small source; a fresh one must have the same rows in any order.

    `unsupported` may hold "next token" (targets are something else than the input one place on), with a reason.
    """

    def source(self) -> DataSource:
        """Returns a new source each time."""
        raise AssertionError("implement source() in the conformance class")  # noqa: EM101

    def indices(self) -> list[int]:
        """Returns those of a few indices that the source has."""
        count = self.source().num_rows
        return [index for index in _INDICES if count is None or index < count]

    def rows(self) -> list[dict[str, np.ndarray]]:
        """Returns the rows at those indices, of one source."""
        source = self.source()
        return [source.row(index) for index in self.indices()]

    def test_rows_have_the_shapes_and_types_of_the_contract(self) -> None:
        source = self.source()
        row = source.row(0)
        record: Any = source.batch
        assert set(source.fields) == set(record._fields), "fields has the names of the record"
        for name, field in source.fields.items():
            if field is not None:
                assert (row[name].shape, str(row[name].dtype)) == (field.shape, field.dtype), name

    def skip_unless_tokens(self) -> None:
        """Skips a test about rows of tokens for a source of another record."""
        if self.source().batch is not Batch:
            pytest.skip(f"{type(self.source()).__name__} makes no rows of tokens")

    def test_ids_are_inside_the_vocabulary(self) -> None:
        self.skip_unless_tokens()
        source = self.source()
        for row in self.rows():
            for name in ("input_ids", "target_ids"):
                assert 0 <= row[name].min() <= row[name].max() < source.vocab_size

    def test_rows_depend_on_the_index_alone(self) -> None:
        indices, source = self.indices(), self.source()
        # Copies: a source that reuses its buffers would make every comparison true.
        asked = [{name: array.copy() for name, array in source.row(index).items()} for index in indices]
        for index, first in zip(indices, asked, strict=True):
            ways = {
                "asked a second time": source.row(index),
                "asked of a new source": self.source().row(index),
            }
            backwards = self.source()
            for later in reversed(indices[indices.index(index) :]):
                ways["asked after later rows"] = backwards.row(later)
            for way, row in ways.items():
                for name in first:
                    assert np.array_equal(first[name], row[name]), f"{name} of row {index} is another when {way}"

    def test_a_caller_may_keep_and_change_a_row(self) -> None:
        source = self.source()
        first = source.row(0)
        before = {name: array.copy() for name, array in first.items()}
        source.row(self.indices()[-1])
        for name, array in before.items():
            assert np.array_equal(first[name], array), f"{name} of row 0 changed when another row was asked for"

    def test_it_ends_where_it_says(self) -> None:
        source = self.source()
        if source.num_rows is not None:
            with pytest.raises(IndexError):
                source.row(source.num_rows)

    def test_splits_add_up_to_all_the_data(self) -> None:
        source = self.source()
        held_out, whole, train = source.held_out(), source.once(), source.once("train")
        if held_out is None or whole is None or train is None:
            pytest.skip(f"{type(source).__name__} holds nothing out, or has no end")
        parts = [content for part in (train, held_out) for content in _contents(part)]
        assert sorted(parts) == _contents(whole), "once() must be all the data: those of once('train') and held_out()"

    def test_rows_differ(self) -> None:
        ids = [b"".join(np.asarray(row[name]).tobytes() for name in sorted(row)) for row in self.rows()]
        assert len(ids) == 1 or len(set(ids)) > 1, "every row is the same: is the index used?"

    def test_targets_are_the_next_tokens(self) -> None:
        self.skip_unless_tokens()
        self.skip_unless("next token")
        for row in self.rows():
            same = (row["segment_ids"][1:] == row["segment_ids"][:-1]) & (row["segment_ids"][1:] > 0)
            shifted = row["target_ids"][:-1] == row["input_ids"][1:]
            weighted = row["loss_weights"][:-1] > 0
            assert shifted[same & weighted].all(), "target_ids must be input_ids one place on, inside a segment"

    def test_padding_carries_no_loss(self) -> None:
        self.skip_unless_tokens()
        for row in self.rows():
            assert not row["loss_weights"][row["segment_ids"] == 0].any()
            assert (row["loss_weights"] >= 0).all()

    def test_positions_count_up_inside_a_segment(self) -> None:
        self.skip_unless_tokens()
        for row in self.rows():
            same = row["segment_ids"][1:] == row["segment_ids"][:-1]
            inside = same & (row["segment_ids"][1:] > 0)
            assert (np.diff(row["positions"])[inside] == 1).all()
            starts = np.flatnonzero(~same) + 1
            assert (row["positions"][starts][row["segment_ids"][starts] > 0] == 0).all(), "segments start at 0"

    def test_the_digest_is_stable_and_tells_seeds_apart(self) -> None:
        source = self.source()
        assert source.digest == self.source().digest
        other = source.config.clone(seed=source.config.seed + 1).build()
        first, second = (each.row(self.indices()[-1]) for each in (source, other))
        if any(not np.array_equal(first[name], second[name]) for name in first):
            assert source.digest != other.digest, "rows of another seed differ and the digest doesn't"
