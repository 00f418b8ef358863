"""The fullest moment of temporary memory against the compiler's own figure."""

import pytest
from kanawa_parallel.plan.memory.liveness import bytes_by_owner, find_peak

ASSIGNMENT = """\
BufferAssignment:
allocation 0: size 64, parameter 0, shape |f32[16]| at ShapeIndex {}:
 value: <1 p @0> (size=64,offset=0): f32[16]{0}
allocation 1: size 300, preallocated-temp:
 value: <2 a @0> (size=100,offset=0): f32[25]{0}
 value: <3 b @0> (size=100,offset=100): f32[25]{0}
 value: <4 c @0> (size=100,offset=0): f32[25]{0}
 value: <5 d @0> (size=100,offset=200): f32[25]{0}
 value: <6 carried{1} (phi) @0> (size=100,offset=200): f32[25]{0}
 value: <7 view @0> (size=40,offset=110): f32[10]{0}

"""
RANGES = """\
HloLiveRange (max 9):
  InstructionSequence:
    0:p
  BufferLiveRange:
    p{}:0-9
    a{}:0-3
    b{}:2-8
    c{}:4-5
    d{}:6-6
    carried{1}:6-9
    view{}:3-7
  Live ranges at 2 (peak):
    a{}: 100 bytes (cumulative: 100 bytes)
"""


def test_values_that_share_a_place_count_once_and_loops_names_give_way():
    found = find_peak(ASSIGNMENT, RANGES)
    assert found.bytes == 200
    assert found.reserved_bytes == 300
    assert found.error == pytest.approx(-1 / 3)
    assert bytes_by_owner(found, lambda name: name) in (
        {"a": 100, "b": 100},
        {"c": 100, "b": 100},
        {"b": 100, "d": 100},
    )


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_the_compiled_steps_peak_is_near_what_the_compiler_reserves(text, platform):
    found = find_peak(text(f"{platform}_assignment"), text(f"{platform}_live_ranges"))
    assert -0.25 < found.error <= 0.01


def test_nothing_to_read_is_nothing_held():
    assert find_peak("", "").bytes == 0
