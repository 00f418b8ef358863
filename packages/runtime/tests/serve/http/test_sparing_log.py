"""Log lines that clients cause."""

import io
import logging

import pytest
from kanawa_runtime.serve.http.lifecycle import Sparing, spare_logs


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def log():
    """A logger that writes sparingly, its clock, and what it wrote."""
    clock, written = Clock(), io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(Sparing(most=3, seconds=60.0, clock=clock))
    logger = logging.Logger("of a test")
    logger.addHandler(handler)
    return logger, clock, written


def test_a_few_of_a_kind_and_then_their_number(log):
    logger, clock, written = log

    def complain(count):
        for number in range(count):
            logger.warning("request %d is malformed", number)

    complain(1000)
    assert written.getvalue().splitlines() == [f"request {i} is malformed" for i in range(3)]
    clock.seconds = 61.0
    complain(2)
    assert written.getvalue().splitlines()[3:] == [
        "request 0 is malformed (997 more like it were dropped)",
        "request 1 is malformed",
    ]


def test_what_is_said_elsewhere_is_written(log):
    logger, _, written = log
    for _ in range(5):
        logger.warning("often")
    logger.warning("once: %s", "this")
    assert written.getvalue().splitlines() == ["often"] * 3 + ["once: this"]


def test_every_handler_of_the_process_is_spared():
    root, handler = logging.getLogger(), logging.NullHandler()
    before = {one: list(one.filters) for one in root.handlers}
    root.addHandler(handler)
    try:
        spare_logs()
        assert all(isinstance(one.filters[-1], Sparing) for one in root.handlers)
    finally:
        root.removeHandler(handler)
        for one, filters in before.items():
            one.filters[:] = filters
