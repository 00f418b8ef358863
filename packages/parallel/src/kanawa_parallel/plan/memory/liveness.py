"""The temporaries at their fullest moment, from the compiler's own buffer assignment and live ranges.

The compiler shares one allocation among values that don't live at once. Those alive at the fullest moment are the
peak; what remains up to the allocation's size is lost between them, and is reported as the error.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+),(.*):$")
_VALUE = re.compile(r"^ value: <\d+ (\S+?)( \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (\S+)")
_RANGE = re.compile(r"^    ([^\s:]+?)(\{[\d,]*\})?:(\d+)-(\d+)$")


@dataclass(frozen=True)
class Buffer:
    """A value in temporary memory: its name (with tuple index), size, offset, shape, and first and last moment.

    `carried` if it is a loop's name for what an instruction made.
    """

    name: str
    size: int
    offset: int
    shape: str
    start: int
    end: int
    carried: bool = False


@dataclass(frozen=True)
class Peak:
    """The fullest moment of temporary memory: its buffers, and the bytes the compiler reserves for it."""

    buffers: tuple[Buffer, ...] = ()
    reserved_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The sum of what is alive."""
        return sum(buffer.size for buffer in self.buffers)

    @property
    def error(self) -> float:
        """How far the sum is from the compiler's figure, as a part of it."""
        return self.bytes / self.reserved_bytes - 1 if self.reserved_bytes else 0.0


def find_peak(assignment: str, live_ranges: str) -> Peak:
    """Returns the peak from the texts of a buffer assignment and of its live ranges."""
    ranges = _ranges(live_ranges)
    buffers, reserved = [], 0
    inside = False
    for line in assignment.splitlines():
        head = _ALLOCATION.match(line)
        if head:
            # A colour is another memory space than the device's main one, such as a core's own or the host's.
            inside = "preallocated-temp" in head[2] and "color" not in head[2]
            reserved = max(reserved, int(head[1])) if inside else reserved
            continue
        value = _VALUE.match(line) if inside else None
        if value:
            name = value[1]
            # A value without a range is never alive: an end before its start.
            start, end = ranges.get(name, ranges.get(name + "{}", (0, -1)))
            buffers.append(Buffer(name, int(value[3]), int(value[4]), value[5], start, end, bool(value[2])))
    return Peak(_named(_fullest(buffers), buffers), reserved)


def bytes_by_owner(fullest: Peak, owner: Callable[[str], str]) -> dict[str, int]:
    """Returns bytes at the peak by `owner(instruction's name)`, largest first."""
    total: Counter[str] = Counter()
    for buffer in fullest.buffers:
        total[owner(buffer.name.partition("{")[0])] += buffer.size
    return dict(total.most_common())


def _ranges(text: str) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    inside = False
    for line in text.splitlines():
        # Two spaces: a section's head. Entries of a section have four.
        if line.startswith("  ") and not line.startswith("   "):
            inside = line.strip() == "BufferLiveRange:"
            continue
        match = _RANGE.match(line) if inside else None
        if match:
            ranges[match[1] + (match[2] or "{}")] = int(match[3]), int(match[4])
    return ranges


def _fullest(buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """Returns the buffers alive at the moment that holds most; values that share a place count once, the largest."""
    if not buffers:
        return ()
    starts = np.array([b.start for b in buffers])
    ends = np.array([b.end for b in buffers])
    best: tuple[Buffer, ...] = ()
    best_bytes = -1
    # Memory grows only where a value begins, so one of those moments is the fullest.
    for moment in np.unique(starts[ends >= starts]):
        alive = [buffers[i] for i in np.flatnonzero((starts <= moment) & (ends >= moment))]
        disjoint = _disjoint(alive)
        size = sum(b.size for b in disjoint)
        if size > best_bytes:
            best, best_bytes = disjoint, size
    return best


def _named(alive: tuple[Buffer, ...], buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """Returns the buffers with those that a loop carries under the name of the instruction that fills their place."""
    # A loop's carried value has the loop's name, which belongs to no module; the instruction that
    # fills the place does. Reversed: the first one wins.
    makers = {(b.offset, b.size): b for b in reversed(buffers) if not b.carried}
    return tuple(makers.get((b.offset, b.size), b) if b.carried else b for b in alive)


def _disjoint(alive: list[Buffer]) -> tuple[Buffer, ...]:
    """Returns buffers without those that lie inside another: they are views of it or take its place."""
    disjoint: list[Buffer] = []
    reach = -1
    for buffer in sorted(alive, key=lambda b: (b.offset, -b.size)):
        # Sorted by offset, larger ones first: a buffer that ends before another's end lies inside it.
        if buffer.offset + buffer.size > reach:
            disjoint.append(buffer)
            reach = buffer.offset + buffer.size
    return tuple(disjoint)
