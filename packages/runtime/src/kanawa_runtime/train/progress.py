"""What one sees while a run trains: a bar on a terminal.

Else a plain line now and then through logging.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from kanawa.status import hidden

from kanawa_runtime.train.events import number

logger = logging.getLogger(__name__)

_LINE_SECONDS = 10.0
#: Weight of the newest step in the averaged step time.
_NEWEST = 0.1


class Progress:
    """Keeps the averages and says one line every `line_seconds`; the bar builds on it."""

    def __init__(self, total: int, start: int = 0, line_seconds: float = _LINE_SECONDS) -> None:
        self.total = total
        self.start = start
        self._line_seconds = line_seconds
        self._said: float | None = None
        self._last: float | None = None
        self._seconds: float | None = None

    def step(self, record: Mapping[str, Any]) -> None:
        """Takes the record of a `step` event."""
        now = time.monotonic()
        if self._last is not None:
            spent = now - self._last
            self._seconds = spent if self._seconds is None else self._seconds + _NEWEST * (spent - self._seconds)
        self._last = now
        self._show(record, now)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Takes the record of an `eval` event."""
        logger.info("step %s: evaluation %s", record.get("step"), self.losses(record))

    def _show(self, record: Mapping[str, Any], now: float) -> None:
        done = int(record["step"])
        if self._said is None or now - self._said >= self._line_seconds or done >= self.total:
            self._said = now
            logger.info("%s", self.line(record))

    def line(self, record: Mapping[str, Any]) -> str:
        """Returns "step 40/600  loss 2.31  0.71 nats/byte  9.2k tokens/s  1:02 left"."""
        done = int(record["step"])
        parts = [f"step {done}/{self.total}", self.losses(record), *self.speeds(record)]
        return "  ".join(part for part in parts if part)

    def losses(self, record: Mapping[str, Any]) -> str:
        """Returns the record's loss, and nats per byte where it has them."""
        text = f"loss {number(record['loss']):.4f}"
        if "nats_per_byte" in record:
            text += f"  {number(record['nats_per_byte']):.4f} nats/byte"
        return text

    def speeds(self, record: Mapping[str, Any]) -> list[str]:
        """Returns tokens a second and the time left, once two steps were seen."""
        if self._seconds is None:
            return []
        rate = number(record.get("tokens", 0)) / max(self._seconds, 1e-9)
        left = max(0, self.total - int(record["step"])) * self._seconds
        return [f"{human_count(rate)} tokens/s", f"{human_duration(left)} left"]


class _Silent(Progress):
    """The same in processes that have nothing to say."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Says nothing."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Says nothing."""


class _Bar(Progress):
    """The same on a terminal, with rich."""

    def __init__(self, total: int, start: int, bar: Any) -> None:
        super().__init__(total, start)
        self._bar = bar
        self._task = bar.add_task("training", total=total, completed=start, text="")

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Prints the evaluation above the bar."""
        self._bar.console.print(f"step {record.get('step')}: evaluation {self.losses(record)}")

    def _show(self, record: Mapping[str, Any], now: float) -> None:
        text = "  ".join([self.losses(record), *self.speeds(record)])
        self._bar.update(self._task, completed=int(record["step"]), text=text)


@contextlib.contextmanager
def progress_bar(total: int, start: int = 0, line_seconds: float = _LINE_SECONDS) -> Iterator[Progress]:
    """Yields what takes the records of steps; only process 0's says anything."""
    if jax.process_index() != 0:
        yield _Silent(total, start)
        return
    bar = _rich_bar() if sys.stderr.isatty() else None
    if bar is None:
        yield Progress(total, start, line_seconds)
        return
    with hidden(), bar:
        yield _Bar(total, start, bar)


def _rich_bar() -> Any:
    """Returns a bar on the error stream, None without rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    columns = (BarColumn(bar_width=28), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    return RichProgress(*columns, console=Console(stderr=True), transient=False)


def human_count(value: float) -> str:
    """Returns "950", "9.2k", "1.4M"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}"


def human_duration(seconds: float) -> str:
    """Returns "0:42", "12:05", "3:07:00"."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
