"""The shapes that programs are compiled for: ladders of sizes, of which each call takes the smallest that holds it."""

import bisect
from collections.abc import Sequence


def ladder(largest: int, smallest: int, factor: int) -> tuple[int, ...]:
    """Returns smallest, smallest * factor, … up to and with `largest`."""
    sizes, size = [], smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)


def at_most(sizes: Sequence[int], largest: int) -> tuple[int, ...]:
    """Returns the sizes in order, those above `largest` left out, and `largest` itself."""
    return tuple(sorted({size for size in sizes if size < largest} | {largest}))


def smallest_holding(sizes: Sequence[int], count: int) -> int:
    """Returns the first of ascending sizes that is at least `count`; the last where none is."""
    return sizes[min(bisect.bisect_left(sizes, count), len(sizes) - 1)]
