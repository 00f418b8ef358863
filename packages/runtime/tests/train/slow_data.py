"""Data of the tiny experiment that takes its time where the variable SLOW_AT says: for signals that come just then.

SLOW_AT is "digest", "row", "evaluation", "compile" (a compiler that holds the main thread) or nothing.
"""

import hashlib
import os
import pathlib
import time

import kanawa.contracts
import tiny_lm

WHERE = os.environ.get("SLOW_AT", "")
SECONDS = float(os.environ.get("SLOW_SECONDS", "60"))
#: Says to the test that the slow part has begun.
REACHED = os.environ.get("SLOW_REACHED", "")


def slowly():
    """Tells the test, then takes its time."""
    pathlib.Path(REACHED).touch()
    time.sleep(SECONDS)


class SlowData(tiny_lm.CountingTokens):
    """Counts, and holds out four batches."""

    class Config(tiny_lm.CountingTokens.Config):
        """Unchanged."""

    @property
    def digest(self):
        if WHERE == "digest":
            slowly()
        return super().digest

    def row(self, index):
        if WHERE == "row" and index >= 80 and self.config.num_rows is None:
            slowly()
        if WHERE == "evaluation" and self.config.num_rows is not None:
            pathlib.Path(REACHED).touch()
            time.sleep(0.2)
        return super().row(index)

    def held_out(self):
        return self.config.clone().set(num_rows=32).build()


if WHERE == "compile":
    _compile = kanawa.contracts.Lowered.compile

    def _held(self):
        """Compiles after holding the main thread in one long call in C, where no handler of Python's runs."""
        begin = time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
        rounds = int(100_000 * SECONDS / (time.monotonic() - begin))
        pathlib.Path(REACHED).touch()
        hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
        return _compile(self)

    kanawa.contracts.Lowered.compile = _held
