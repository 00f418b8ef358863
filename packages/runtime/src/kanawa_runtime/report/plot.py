"""Line plots as SVG text, drawn here: no library, no network, colours from the page's variables."""

import dataclasses
import html
import json
import math
import statistics
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]

#: Width and height of a plot across the page, of one of two side by side, and of any on a phone. Text shrinks with its
#: drawing: on a narrow page a wide one would have text of four pixels.
WIDE, HALF, NARROW = (1040, 320), (520, 240), (360, 230)

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 40
#: For each pixel of width; more can't be seen, and makes a large page.
_POINTS_PER_PIXEL = 1.2
#: Beyond it the arithmetic of axes overflows; NaN and infinity compare false as well.
_LARGEST = 1e300
#: From this ratio of the largest to the smallest value on, a logarithm shows more.
_LOG_RATIO = 3.0


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


@dataclasses.dataclass(frozen=True)
class Series:
    """A named curve in colour `colour` (1 to 8).

    `faint` draws what a smoothed one stands for, `marked` adds dots, and without `joined` there are only those: values
    that were not measured alike must not look like a curve. `level` draws its one value across the plot.
    """

    name: str
    points: Points
    colour: int = 1
    faint: bool = False
    marked: bool = False
    joined: bool = True
    level: bool = False


def line_plot(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    allow_log: bool = False,
    from_zero: bool = False,
    size: tuple[int, int] = WIDE,
) -> str:
    """Returns an <svg> of the finite points, "" where there are none.

    Values are also in `data-plot`, as JSON, for the page's script.
    """
    most = int(size[0] * _POINTS_PER_PIXEL)
    drawn = [dataclasses.replace(s, points=thinned(_finite(s.points), most)) for s in series]
    drawn = [s for s in drawn if s.points]
    points = [p for s in drawn if not s.level for p in s.points]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    drawn = [dataclasses.replace(s, points=_across(s.points, left, right)) if s.level else s for s in drawn]
    points = [p for s in drawn for p in s.points]
    frame = _frame(points, size, allow_log=allow_log, from_zero=from_zero)
    parts = [_grid(frame, x_label, y_label)]
    # What is faint goes first, since later shapes cover earlier ones.
    parts += [_curve(s, frame) for s in sorted(drawn, key=lambda s: not s.faint)]
    shown = ", ".join(s.name for s in drawn if not s.faint)
    title = html.escape(f"{y_label} by {x_label}: {shown}")
    return (
        f'<svg class="plot" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{title}" '
        f"data-plot='{_embedded(drawn, frame.x)}'>{''.join(parts)}"
        f'<line class="cross" y1="{_TOP}" y2="{size[1] - _BOTTOM}" visibility="hidden"/></svg>'
    )


def _across(points: Points, left: float, right: float) -> Points:
    """Returns the last value at both ends."""
    value = points[-1][1]
    return [(left, value), (right, value)]


def smoothed(points: Points) -> list[tuple[float, float]]:
    """Returns the finite points averaged over neighbours on both sides, fewer near the start where curves are steep."""
    finite = _finite(points)
    # Half a window each side: the curve may not lag behind what it smooths.
    widest = len(finite) // 80
    result = []
    for index, (x, _) in enumerate(finite):
        half = min(widest, index // 8, len(finite) - 1 - index)
        result.append((x, statistics.fmean(y for _, y in finite[index - half : index + half + 1])))
    return result


def thinned(points: Points, most: int = 1200) -> list[tuple[float, float]]:
    """Returns at most about `most` points that keep every bucket's extremes, so that no spike is lost."""
    points = list(points)
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / (most // 2))
    kept = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        # A set, since in a flat bucket both are the same point; sorted, since a line must not run backwards.
        kept += sorted({min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])})
    return kept


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if abs(x) < _LARGEST and abs(y) < _LARGEST]


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The axes of one plot and its size."""

    x: Scale
    y: Scale
    width: int
    height: int


def _frame(points: Points, size: tuple[int, int], *, allow_log: bool, from_zero: bool) -> _Frame:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    # A loss that falls from 10 to 9 is read off a straight scale; one that falls a hundredfold is not.
    is_log = allow_log and low > 0 and high / low > _LOG_RATIO
    if is_log:
        low, high = low / 1.06, high * 1.06
    elif from_zero and low >= 0:
        low, high = 0.0, high * 1.08 or 1.0
    else:
        low, high = padded(low, high)
    left, right = (min(xs), max(xs)) if max(xs) > min(xs) else padded(min(xs), max(xs))
    width, height = size
    x = Scale(left, right, _LEFT, width - _RIGHT)
    # SVG's y grows downwards: the lowest value has the larger one.
    return _Frame(x, Scale(low, high, height - _BOTTOM, _TOP, is_log), width, height)


def _grid(frame: _Frame, x_label: str, y_label: str) -> str:
    right, base, below = frame.width - _RIGHT, frame.height - _BOTTOM, frame.height - 6
    parts = []
    for value in frame.y.ticks():
        at = f"{frame.y(value):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(_text("tick", _LEFT - 8, at, tick_text(value), 'dy="0.32em" text-anchor="end"'))
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{base}" y2="{base}"/>')
    for value in frame.x.ticks(7 if frame.width > HALF[0] else 5 if frame.width > NARROW[0] else 3):
        at = f"{frame.x(value):.1f}"
        # A number at the right edge would be cut in half.
        anchor = "end" if frame.x(value) > right - 12 else "middle"
        parts.append(_text("tick", at, base + 17, tick_text(value), f'text-anchor="{anchor}"'))
    scale = ", log scale" if frame.y.is_log else ""
    parts.append(_text("label", right, below, x_label, 'text-anchor="end"'))
    parts.append(_text("label", _LEFT, below, y_label + scale))
    return "".join(parts)


def _text(kind: str, x: float | str, y: float | str, text: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" {more}>{html.escape(text)}</text>'


def _curve(series: Series, frame: _Frame) -> str:
    # Written to a tenth of a pixel: finer differences don't show and make the page larger.
    placed = [(frame.x(a), frame.y(b)) for a, b in series.points]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in placed)
    kind = "curve" + " faint" * series.faint + " dashed" * series.marked + " level" * series.level
    parts = [f'<path class="{kind} c{series.colour}" d="{path}"/>'] if series.joined else []
    if series.marked or len(placed) == 1 or not series.joined:
        dot = f'<circle class="dot c{series.colour}"'
        parts += [f'{dot} cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in placed]
    return "".join(parts)


def _embedded(series: Sequence[Series], x: Scale) -> str:
    """Returns what the page's pointer script needs, safe inside a quoted attribute."""
    body = {
        "x": [x.low, x.high, x.start, x.end],
        "series": [
            {
                "name": s.name,
                "colour": s.colour,
                "points": [[a, float(f"{b:.6g}")] for a, b in s.points],
            }
            for s in series
            if not s.faint
        ],
    }
    return html.escape(json.dumps(body, separators=(",", ":")), quote=True)
