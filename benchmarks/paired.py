"""Timing two programs against each other: interleaved pairs, the median ratio and its interval.

Running A then B then B then A cancels drift; a ratio of medians would keep it.
"""

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median of first / second over pairs, its 95 % interval by order statistics, and both medians in seconds.

    `processor` is the same median of processor time over all threads, which other work on the machine blurs less.
    """

    median: float
    low: float
    high: float
    first_seconds: float
    second_seconds: float
    pairs: int
    processor: float

    def __str__(self) -> str:
        return (
            f"{self.median:.4f} (95 % {self.low:.4f} to {self.high:.4f}, {self.pairs} pairs; "
            f"{self.first_seconds * 1e3:.2f} ms against {self.second_seconds * 1e3:.2f} ms)"
        )


def compare(first: Callable[[], None], second: Callable[[], None], pairs: int) -> Ratio:
    """Returns the ratio of the first's time to the second's; both must block until done."""
    first(), second()
    times: tuple[list[float], list[float]] = ([], [])
    worked: tuple[list[float], list[float]] = ([], [])
    for index in range(pairs):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        for which in order:
            started, busy = time.perf_counter(), time.process_time()
            (first, second)[which]()
            times[which].append(time.perf_counter() - started)
            worked[which].append(time.process_time() - busy)
    ratios = sorted(a / b for a, b in zip(*times, strict=True))
    # Ranks of the 95 % interval of a median: n/2 -+ 0.98 sqrt(n).
    reach = 0.98 * pairs**0.5
    low, high = max(0, int(pairs / 2 - reach)), min(pairs - 1, int(pairs / 2 + reach))
    return Ratio(
        statistics.median(ratios),
        ratios[low],
        ratios[high],
        statistics.median(times[0]),
        statistics.median(times[1]),
        pairs,
        statistics.median(a / b for a, b in zip(*worked, strict=True)),
    )


def children_seconds() -> float:
    """Returns the processor time of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
