"""Conformance of a loader: the same global rows for any number of processes and any restart, and no thread left."""

import contextlib
import itertools
import threading
import time

import numpy as np

from kanawa.config import Count, Size
from kanawa.contracts import Batch, DataSource
from kanawa.testing.conformance import ConfiguredConformance

_LENGTH = 4


class Rows(DataSource):
    """Row r holds r everywhere, so that every batch shows its rows."""

    class Config(DataSource.Config):
        sequence_length: Size = _LENGTH
        num_rows: Count | None = None
        packed: bool = True

    @property
    def packed(self) -> bool:
        """Whether batches carry positions and segment ids."""
        return bool(self.config.packed)

    @property
    def num_rows(self) -> int | None:
        """The configured count."""
        count: int | None = self.config.num_rows
        return count

    @property
    def vocab_size(self) -> int:
        """More than any row of a test."""
        return 1 << 20

    @property
    def digest(self) -> str:
        """Rows depend on nothing."""
        return "rows"

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`."""
        if self.config.num_rows is not None and index >= self.config.num_rows:
            raise IndexError(index)
        ids = np.full(_LENGTH, index, np.int32)
        ones = np.ones(_LENGTH, np.int32)
        places = np.arange(_LENGTH, dtype=np.int32)
        weights = np.ones(_LENGTH, np.float32)
        return {
            "input_ids": ids,
            "target_ids": ids,
            "positions": places,
            "segment_ids": ones,
            "loss_weights": weights,
        }


class LoaderConformance(ConfiguredConformance):
    """Subclasses return the loader's config."""

    def batches(self, count: int, source: DataSource | None = None, **arguments: object) -> list[Batch]:
        """Returns the first batches, of four rows globally."""
        loader = self.config().build(source=source or Rows.Config().build(), global_batch=4, **arguments)
        with contextlib.closing(iter(loader)) as batches:
            return list(itertools.islice(batches, count))

    def rows(self, batches: list[Batch]) -> list[int]:
        """Returns which rows the batches hold, in order."""
        return [int(row[0]) for batch in batches for row in batch.input_ids]

    def test_rows_come_in_order_with_the_types_of_the_contract(self) -> None:
        batches = self.batches(3)
        assert self.rows(batches) == list(range(12))
        for name, array in batches[0]._asdict().items():
            if name == "sources":
                assert array is None, "these rows have one source"
                continue
            assert array is not None
            assert array.shape == (4, _LENGTH), name
            assert array.dtype == (np.float32 if name == "loss_weights" else np.int32), name

    def test_each_process_gets_its_places_of_every_batch(self) -> None:
        assert self.rows(self.batches(3, local_rows=range(2, 4))) == [2, 3, 6, 7, 10, 11]

    def test_a_restart_is_a_row_number(self) -> None:
        assert self.rows(self.batches(2, start_row=8)) == list(range(8, 16))

    def test_the_end_is_padded_with_rows_of_no_weight(self) -> None:
        batches = self.batches(5, Rows.Config(num_rows=6).build())
        assert len(batches) == 2
        assert batches[1].input_ids.shape == (4, _LENGTH)
        assert [float(row.sum()) for row in batches[1].loss_weights] == [_LENGTH, _LENGTH, 0.0, 0.0]

    def test_unpacked_rows_have_neither_positions_nor_segments(self) -> None:
        (batch,) = self.batches(1, Rows.Config(packed=False).build())
        assert batch.positions is None
        assert batch.segment_ids is None

    def test_closing_it_early_leaves_no_thread(self) -> None:
        before = set(threading.enumerate())
        self.batches(1)
        deadline = time.monotonic() + 10

        def left() -> list[str]:
            return [t.name for t in set(threading.enumerate()) - before if t.is_alive() and not t.daemon]

        # A reader may be in the middle of a row when it is stopped.
        while left() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left(), f"threads still run after close: {left()}"
