"""The fullest moment against filling memory byte by byte, for schedules that a compiler could have made."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.plan.memory.liveness import Buffer, bytes_by_owner, find_peak

MOMENTS = 12


@st.composite
def schedules(draw):
    """Buffers whose places don't overlap while they live; some have views inside, which take no place of their own."""
    buffers = []
    for index in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, MOMENTS - 1))
        end = draw(st.integers(start, MOMENTS - 1))
        size = draw(st.integers(1, 9))
        others = [b for b in buffers if b.start <= end and start <= b.end]
        offset = 0
        while any(b.offset < offset + size and offset < b.offset + b.size for b in others):
            offset += 1
        buffers.append(Buffer(f"b{index}", size, offset, "s8[]", start, end))
    for index, whole in enumerate(list(buffers)):
        if draw(st.booleans()) and whole.size > 1:
            part = draw(st.integers(1, whole.size - 1))
            buffers.append(Buffer(f"v{index}", part, whole.offset, "s8[]", whole.start, whole.end))
    return buffers


def written(buffers, reserved):
    """Returns the two texts as a compiler writes them."""
    lines = [f"allocation 0: size {reserved}, preallocated-temp:"]
    lines += [f" value: <{i} {b.name} @0> (size={b.size},offset={b.offset}): {b.shape}" for i, b in enumerate(buffers)]
    ranges = ["HloLiveRange (max 9):", "  BufferLiveRange:", *(f"    {b.name}{{}}:{b.start}-{b.end}" for b in buffers)]
    return "BufferAssignment:\n" + "\n".join(lines) + "\n", "\n".join(ranges) + "\n"


def filled(buffers):
    """Returns the most bytes in use at any moment."""
    most = 0
    for moment in range(MOMENTS):
        memory = np.zeros(200, bool)
        for buffer in buffers:
            if buffer.start <= moment <= buffer.end:
                memory[buffer.offset : buffer.offset + buffer.size] = True
        most = max(most, int(memory.sum()))
    return most


@given(schedules())
def test_the_peak_is_the_fullest_memory(buffers):
    reserved = max(b.offset + b.size for b in buffers)
    held = find_peak(*written(buffers, reserved))
    assert held.bytes == filled(buffers) <= held.reserved_bytes == reserved
    assert held.error == held.bytes / reserved - 1
    assert sum(bytes_by_owner(held, lambda name: name).values()) == held.bytes
    assert all(b.name.startswith("b") for b in held.buffers), "a view counts for nobody"


def test_owners_are_ranked_and_tuple_indices_are_one_instruction():
    buffers = [
        Buffer("loop{0}", 3, 0, "s8[]", 0, 5),
        Buffer("loop{1}", 4, 3, "s8[]", 0, 5),
        Buffer("x", 1, 7, "s8[]", 0, 5),
    ]
    text, ranges = written(buffers, 8)
    ranges = ranges.replace("loop{0}{}", "loop{0}").replace("loop{1}{}", "loop{1}")
    assert bytes_by_owner(find_peak(text, ranges), str.upper) == {"LOOP": 7, "X": 1}


def test_memory_of_other_kinds_is_not_the_devices():
    """Allocations in colours are host or on-chip memory; only the preallocated temporaries are counted."""
    text, ranges = written([Buffer("a", 5, 0, "s8[5]", 0, 3)], 5)
    host = text.replace("preallocated-temp:", "preallocated-temp, color 5:")
    assert find_peak(host, ranges).bytes == 0
    assert find_peak(text + host.partition("\n")[2], ranges).bytes == 5


def test_values_without_a_live_range_are_never_alive():
    text, ranges = written([Buffer("a", 5, 0, "s8[5]", 0, 3)], 5)
    assert find_peak(text, ranges.replace("a{}", "other{}")).bytes == 0
