"""From rows to the batches of one process, read ahead while the accelerators compute."""

import abc
from collections.abc import Generator, Sequence
from typing import Any

from kanawa.config import Configurable
from kanawa.contracts.batch import Batch
from kanawa.contracts.data import DataSource


class Loader(Configurable):
    """The trainer's and the evaluation's `loader` slot; a component of kind "loaders".

    Step s of an iteration holds, of each global batch, the rows `start_row + s * global_batch + p` for p in
    `local_rows`. Nothing else is state: a resumed run builds a new loader at the number of rows consumed, so the order
    may depend on neither threads nor time. How far it reads ahead is a placement choice.
    """

    def __init__(
        self,
        cfg: Any,
        *,
        source: DataSource,
        global_batch: int,
        local_rows: Sequence[int] | None = None,
        start_row: int = 0,
    ) -> None:
        """Takes this process's places in the global batch; None is all of them (one process)."""
        super().__init__(cfg)
        self.source = source
        self.global_batch = global_batch
        self.local_rows = tuple(range(global_batch) if local_rows is None else local_rows)
        self.start_row = start_row

    @abc.abstractmethod
    def __iter__(self) -> Generator[Batch, None, None]:
        """Yields batches of NumPy arrays [local rows, length], without end where the source has none.

        A source that ends is padded to whole batches with rows of weight 0: every process must take as many steps.
        Positions and segment ids are None where the source isn't packed. Closing the generator ends its threads.
        """
