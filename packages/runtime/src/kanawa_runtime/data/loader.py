"""Batches for one host, read ahead by threads (grain).

The state of the data is one number: the first row.
"""

import functools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
from kanawa.config import Size
from kanawa.contracts import DataSource, Loader, RowField

from kanawa_runtime.data.errors import LoaderError, RowError

#: A source without end still needs a length for grain; no run reaches it.
_ENDLESS_STEPS = 1 << 48


class GrainLoader(Loader):
    """Reads rows in threads, some batches ahead."""

    class Config(Loader.Config):
        PLACEMENT = ("num_threads", "prefetch_batches")

        num_threads: Size = 2
        prefetch_batches: Size = 4

    def __init__(
        self,
        cfg: "GrainLoader.Config",
        *,
        source: DataSource,
        global_batch: int,
        local_rows: Sequence[int] | None = None,
        start_row: int = 0,
    ) -> None:
        """Takes what every loader does; raises RowError for places outside the batch."""
        places = range(global_batch) if local_rows is None else local_rows
        super().__init__(cfg, source=source, global_batch=global_batch, local_rows=places, start_row=start_row)
        outside = [place for place in self.local_rows if not 0 <= place < global_batch]
        if outside or not self.local_rows:
            message = f"local_rows={self.local_rows} must be some of the {global_batch} rows of a batch"
            raise RowError(message)

    @property
    def num_steps(self) -> int | None:
        """Batches from `start_row` to the end, the last one padded where rows have weights; None without an end."""
        rows = self.source.num_rows
        if rows is None:
            return None
        left = max(0, rows - self.start_row)
        return -(-left // self.global_batch) if "loss_weights" in self.source.fields else left // self.global_batch

    def batch(self, step: int) -> Any:
        """Returns batch `step` (0 starts at `start_row`), the source's record: NumPy arrays [local rows, …]."""
        first = self.start_row + step * self.global_batch
        fields = self.source.fields
        rows = [self._row(first + place, fields) for place in self.local_rows]
        return self.source.batch(
            **{name: None if field is None else np.stack([row[name] for row in rows]) for name, field in fields.items()}
        )

    def _row(self, index: int, fields: Mapping[str, RowField | None]) -> dict[str, np.ndarray]:
        end = self.source.num_rows
        if end is not None and index >= end:
            # The last batch is filled up, because programs are compiled for one shape: segment 0 and weight 0 count
            # nowhere.
            return {name: np.zeros_like(array) for name, array in self._row(end - 1, fields).items()}
        row = self.source.row(index)
        for name, field in fields.items():
            array = row.get(name)
            if field is None or (array is not None and (array.shape, _name(array.dtype)) == (field.shape, field.dtype)):
                continue
            given = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            message = (
                f"{type(self.source).__name__}.row({index})[{name!r}] is {given}; expected {field.dtype} "
                f"{list(field.shape)}"
            )
            raise LoaderError(message)
        return row

    def __iter__(self) -> Generator[Any, None, None]:
        """Yields batches; closing the generator ends grain's threads."""
        # Grain takes a second to import: programs that compile without data shouldn't pay for it.
        import grain

        steps = self.num_steps
        dataset = grain.MapDataset.source(_Steps(self, _ENDLESS_STEPS if steps is None else steps))
        options = grain.ReadOptions(self.config.num_threads, self.config.prefetch_batches)
        iterator: Any = iter(dataset.to_iter_dataset(options))
        try:
            yield from iterator
        finally:
            # Not every iterator of the oldest grain we allow can be closed; those end with the garbage collector.
            close = getattr(iterator, "close", None)
            if close is not None:
                close()


# NumPy takes microseconds to spell a type.
@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


class _Steps:
    """Batches by step, as grain reads them."""

    def __init__(self, loader: GrainLoader, num_steps: int) -> None:
        self._loader, self._num_steps = loader, num_steps

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, step: int) -> Any:
        return self._loader.batch(step)

    def __repr__(self) -> str:
        return f"{type(self._loader.source).__name__} rows"
