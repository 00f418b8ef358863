"""What a person sees of a run: phases before the first step, then steps, evaluations, and what was saved.

The base says nothing, as processes other than the first do. `LineScreen` says it in plain lines, without control
codes; `kanawa_runtime.train.terminal` draws on a terminal."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Weight of the newest step in the averaged step time.
_NEWEST = 0.1


class Pace:
    """Averages step times from step `start` on, towards `total`."""

    def __init__(self, total: int, start: int = 0) -> None:
        self.total = total
        self.done = start
        self._last: float | None = None
        self._seconds: float | None = None

    def take(self, record: Mapping[str, Any]) -> float:
        """Takes the record of a `step` event; returns the time on the monotonic clock."""
        now = time.monotonic()
        self.done = int(record["step"])
        if self._last is not None:
            spent = now - self._last
            self._seconds = spent if self._seconds is None else self._seconds + _NEWEST * (spent - self._seconds)
        self._last = now
        return now

    @property
    def steps(self) -> str:
        """Returns "40/600"."""
        return f"{self.done}/{self.total}"

    def parts(self, record: Mapping[str, Any]) -> list[str]:
        """Returns ["loss 2.31", "0.71 nats/byte", "9.2k tokens/s", "1:02 left"], most wanted first; some may lack."""
        return [*losses(record), *self._speeds(record)]

    def line(self, record: Mapping[str, Any]) -> str:
        """Returns "step 40/600  loss 2.31  0.71 nats/byte  9.2k tokens/s  1:02 left"."""
        return "  ".join([f"step {self.steps}", *self.parts(record)])

    def _speeds(self, record: Mapping[str, Any]) -> list[str]:
        """Returns tokens a second and the time left, once two steps were seen."""
        if self._seconds is None:
            return []
        rate = float(record.get("tokens", 0)) / max(self._seconds, 1e-9)
        left = max(0, self.total - self.done) * self._seconds
        return [f"{human_count(rate)} {record.get('unit', 'tokens')}/s", f"{human_duration(left)} left"]


def losses(record: Mapping[str, Any]) -> list[str]:
    """Returns the record's loss, and reward, nats per byte and the other terms of the loss where it has them."""
    texts = [f"loss {float(record['loss']):.4f}"] if "loss" in record else []
    if "reward" in record:
        texts.insert(0, f"reward {float(record['reward']):.4f}")
    if "nats_per_byte" in record:
        texts.append(f"{float(record['nats_per_byte']):.4f} nats/byte")
    if "sequence_length" in record:
        texts.append(f"over {float(record['tokens']):,.0f} tokens in rows of {record['sequence_length']}")
    elif "unit" in record and record.get("event") == "eval":
        texts.append(f"over {float(record['tokens']):,.0f} {record['unit']}")
    if record.get("event") == "eval":
        texts += [f"{name} {float(value):.4f}" for name, value in record.get("metrics", {}).items()]
    texts += [f"{name} {float(value):.4f}" for name, value in record.get("sets", {}).items() if name.endswith("/loss")]
    tasks = record.get("tasks", {}).items()
    texts += [f"{name} {float(value):.4f}" for name, value in tasks if not name.endswith("_stderr")]
    for path in record.get("loss_terms", ()):
        texts.append(f"{path.rpartition('.')[2]} {float(record['metrics'][path]):.4g}")
    return texts


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


logger = logging.getLogger(__name__)

_LINE_SECONDS = 10.0
#: A phase is announced once it lasts this long: less than what makes a person doubt, more than most phases take.
_ANNOUNCE_SECONDS = 1.0
#: And said again this often, so that a log that is followed shows life.
_AGAIN_SECONDS = 30.0


class Screen:
    """Says nothing."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Shows that `name`, such as "compiling", is going on, with its elapsed time."""
        del name
        yield

    def say(self, text: str) -> None:
        """Shows a line that stays. Safe from any thread."""

    def begin(self, total: int, start: int) -> None:
        """The first step is next."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Takes the record of a `step` event."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Takes the record of an `eval` event."""
        self.say(f"step {record.get('step')}: evaluation {'  '.join(losses(record))}")

    def close(self) -> None:
        """Leaves the terminal as it was. Harmless when called again."""


class LineScreen(Screen):
    """Plain lines: phases that take a while, the first step, one each `line_seconds`, the last."""

    def __init__(self, write: Callable[[str], None] = logger.info, line_seconds: float = _LINE_SECONDS) -> None:
        self._write = write
        self._line_seconds = line_seconds
        self._said: float | None = None
        self._pace = Pace(0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Says the phase once it lasts a second, and then now and then how long it has lasted."""
        ended, begin = threading.Event(), time.monotonic()

        def watch() -> None:
            if ended.wait(_ANNOUNCE_SECONDS):
                return
            self.say(f"{name} ...")
            while not ended.wait(_AGAIN_SECONDS):
                self.say(f"{name} ... {human_duration(time.monotonic() - begin)}")

        watcher = threading.Thread(target=watch, name="phase", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def say(self, text: str) -> None:
        """Writes the line."""
        self._write(text)

    def begin(self, total: int, start: int) -> None:
        """Starts counting."""
        self._pace = Pace(total, start)

    def step(self, record: Mapping[str, Any]) -> None:
        """Writes a line for the first step, one each `line_seconds`, and one for the last."""
        now = self._pace.take(record)
        if self._said is None or now - self._said >= self._line_seconds or self._pace.done >= self._pace.total:
            self._said = now
            self.say(self._pace.line(record))
