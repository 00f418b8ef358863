"""A run's speed and what is left of it, from the records of its steps, in words."""

import time
from collections.abc import Mapping
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
        return [f"{human_count(rate)} tokens/s", f"{human_duration(left)} left"]


def losses(record: Mapping[str, Any]) -> list[str]:
    """Returns the record's loss, and reward and nats per byte where it has them."""
    texts = [f"loss {float(record['loss']):.4f}"]
    if "reward" in record:
        texts.insert(0, f"reward {float(record['reward']):.4f}")
    if "nats_per_byte" in record:
        texts.append(f"{float(record['nats_per_byte']):.4f} nats/byte")
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
