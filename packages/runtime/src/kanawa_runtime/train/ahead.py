"""The next step's batch, read while the device computes this one's."""

from collections.abc import Iterator

from kanawa.contracts import Batch
from kanawa.errors import KanawaError

from kanawa_runtime import faults
from kanawa_runtime.train.stop_signals import RunStopped, StopSignals


class DataReadError(KanawaError):
    """The storage of the data fails."""


class ReadAhead:
    """`batch` is the next one; None where the data `ended`, can't be read, or a signal came while it was waited for.

    That it can't be read is an error only where it is needed: a step before it is first evaluated and saved, and after
    the last step it only serves to try the state.
    """

    def __init__(self, batches: Iterator[Batch], stop: StopSignals) -> None:
        self.batch: Batch | None = None
        self.error: Exception | None = None
        self.ended = False
        self._batches = batches
        self._stop = stop
        self.read()

    def read(self) -> None:
        """Reads the next batch."""
        self.batch = None
        try:
            with self._stop.interruptible():
                faults.reached("in_data")
                self.batch = next(self._batches, None)
                self.ended = self.batch is None
        except RunStopped:
            return
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self.error = error

    def check(self) -> None:
        """Raises what reading raised, DataReadError for what the storage did."""
        if isinstance(self.error, OSError):
            message = (
                f"the next batch can't be read: {self.error}. Mend the storage of the data, and run the same command "
                "again: it resumes from the newest checkpoint"
            )
            raise DataReadError(message) from self.error
        if self.error is not None:
            raise self.error
