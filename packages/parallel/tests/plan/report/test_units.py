"""Numbers keep three digits and a unit that fits, at every size and at the edges between units."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.plan.report.units import format_bytes, format_count, format_seconds, format_sent

WORTH = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
TIMES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
COUNTS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (40, "40 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (2**30, "1 GiB"),
        (95 * 2**30, "95 GiB"),
        (1023.9 * 2**20, "1.00 GiB"),
        (-3 * 2**20, "-3 MiB"),
        (5000 * 2**40, "5,000 TiB"),
    ],
)
def test_sizes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (12.04, "12.0 s"),
        (2.484, "2.48 s"),
        (0.31, "310 ms"),
        (3.1e-4, "310 µs"),
        (4e-9, "4 ns"),
        (90, "90 s"),
    ],
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (300, "300 B"), (3.2e9, "3.20 GB"), (999_999, "1.00 MB")])
def test_what_is_sent(count, text):
    assert format_sent(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (7, "7"), (1500, "1.50 k"), (1.85e12, "1.85 T"), (999.7, "1.00 k"), (2e21, "2,000 E")]
)
def test_amounts(count, text):
    assert format_count(count) == text


def read(text, worth):
    number, unit = re.fullmatch(r"(-?[\d.,]+) ?(\D*)", text).groups()
    return float(number.replace(",", "")) * worth[unit]


@given(st.floats(1e-8, 1e4))
def test_a_duration_reads_back_within_half_a_percent(seconds):
    assert read(format_seconds(seconds), TIMES) == pytest.approx(seconds, rel=6e-3)


@given(st.integers(1, 2**50))
def test_a_size_reads_back_within_half_a_percent(count):
    assert read(format_bytes(count), WORTH) == pytest.approx(count, rel=6e-3)


@given(st.floats(1, 1e20))
def test_an_amount_reads_back_within_half_a_percent(count):
    assert read(format_count(count), COUNTS) == pytest.approx(count, rel=6e-3)
