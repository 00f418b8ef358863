"""Conformance of a data source: rows are a pure function of their index, with the shapes and types of the contract."""

import numpy as np

from kanawa.contracts import DataSource

_TYPES = {
    "input_ids": np.int32,
    "target_ids": np.int32,
    "positions": np.int32,
    "segment_ids": np.int32,
    "loss_weights": np.float32,
}


class DataSourceConformance:
    """An author gives a small source; a fresh one must give the same rows in any order."""

    def source(self) -> DataSource:
        """Returns a new source each time."""
        raise AssertionError("implement source() in the conformance class")  # noqa: EM101

    def test_rows_have_the_shapes_and_types_of_the_contract(self) -> None:
        source = self.source()
        row, length = source.row(0), source.config.sequence_length
        assert set(row) == set(_TYPES)
        for name, dtype in _TYPES.items():
            assert row[name].shape == (length,), name
            assert row[name].dtype == dtype, name

    def test_ids_are_inside_the_vocabulary(self) -> None:
        source = self.source()
        for index in range(3):
            row = source.row(index)
            for name in ("input_ids", "target_ids"):
                assert 0 <= row[name].min() <= row[name].max() < source.vocab_size

    def test_rows_depend_on_the_index_alone(self) -> None:
        forwards, backwards = self.source(), self.source()
        first = [forwards.row(i) for i in range(4)]
        second = [backwards.row(i) for i in reversed(range(4))][::-1]
        for one, other in zip(first, second, strict=True):
            for name in _TYPES:
                assert np.array_equal(one[name], other[name]), name

    def test_padding_carries_no_loss(self) -> None:
        row = self.source().row(0)
        assert not row["loss_weights"][row["segment_ids"] == 0].any()

    def test_positions_count_up_inside_a_segment(self) -> None:
        row = self.source().row(0)
        same = row["segment_ids"][1:] == row["segment_ids"][:-1]
        inside = same & (row["segment_ids"][1:] > 0)
        assert (np.diff(row["positions"])[inside] == 1).all()

    def test_the_digest_is_stable(self) -> None:
        assert self.source().digest == self.source().digest
