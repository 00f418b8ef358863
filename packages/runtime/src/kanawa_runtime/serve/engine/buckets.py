"""The shapes that programs are compiled for: ladders of sizes, of which each call takes the smallest that holds it."""

import bisect
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


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


def grouped(items: Sequence[T], sizes: Sequence[int]) -> Iterator[tuple[Sequence[T], int]]:
    """Yields runs of items, each with the size of the program that takes it; the last one may be larger than its run.

    A large program that would be a quarter empty is left to several calls of the next smaller one.
    """
    rest = items
    while rest:
        at = min(bisect.bisect_left(sizes, len(rest)), len(sizes) - 1)
        smaller = sizes[at - 1] if at else 0
        if smaller and sizes[at] - -(-len(rest) // smaller) * smaller >= sizes[at] // 4:
            at -= 1
        yield rest[: sizes[at]], sizes[at]
        rest = rest[sizes[at] :]
