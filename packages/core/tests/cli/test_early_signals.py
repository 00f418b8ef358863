"""Signals while a command is being prepared, where Python itself swallows them."""

import os
import signal

import pytest
from kanawa.cli.early_signals import Terminated, early_signals


@pytest.fixture(autouse=True)
def usual_answers():
    """Those of a program in the foreground: a shell that runs the tests in the background has SIGINT ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Interrupted:
    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_in_a_callback_of_the_garbage_collector_is_raised_later_and_says_nothing(number, kind, capfd):
    with early_signals() as check:
        # Where nothing can be raised, Python would write a traceback and go on.
        Interrupted(number)
        with pytest.raises(kind):
            check()
    assert capfd.readouterr().err == ""


def test_what_else_goes_wrong_there_is_told(capfd, monkeypatch):
    class Broken:
        def __del__(self):
            message = "broken"
            raise ValueError(message)

    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    with early_signals():
        Broken()
    assert told == [ValueError]
