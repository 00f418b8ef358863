"""Axes: where values go and which numbers are written beside them."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end], linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Returns the place of a value, clipped to the scale."""
        low, high, value = (self._flat(v) for v in (self.low, self.high, value))
        # A range of one value stands in the middle.
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _flat(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.is_log else value

    def ticks(self, count: int = 5) -> list[float]:
        """Returns round numbers inside the range."""
        return _log_ticks(self.low, self.high) if self.is_log else _linear_ticks(self.low, self.high, count)


def padded(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """Returns the range with room at both ends, and some where it is a point."""
    room = (high - low) * share or abs(high) * 0.1 or 1.0
    return low - room, high + room


def tick_text(value: float) -> str:
    """Returns a tick's number, short: "0.003", "1.25k", "3e-5"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if limit <= abs(value) < 1e12:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-").replace("e+", "e")


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    # 0.999: a step that only rounding made too small must not double.
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # 3 * 0.1 is 0.30000000000000004, and would be written so beside the axis.
    return [round(k * step, 12) for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # The finest set of round numbers that leaves room between their labels.
    for multiples in ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [m * 10.0**d for d in decades for m in multiples if low <= m * 10.0**d <= high]
        if len(ticks) <= 7:
            break
    return ticks
