"""Drills say what they counted, also in a quiet test run: "drill: 20 of 20 kills resumed bit for bit".

What is drawn by chance is drawn alike in each run of the tests, which nobody's change shall fail by bad luck; the
nightly ones, for which KANAWA_CHANCE is set, draw anew each time.
"""

import os
import time
from collections.abc import Callable

import hypothesis
import pytest

_NAME = "drill"
_DRAWS_ANEW = bool(os.environ.get("KANAWA_CHANCE"))


def drill_seed() -> int:
    """Returns what a drill's chances come from; PYTEST_SEED repeats those of another run."""
    return int(os.environ.get("PYTEST_SEED", time.time_ns() if _DRAWS_ANEW else 0))


def settle_hypothesis() -> None:
    """Has hypothesis measure nothing that a busy machine, or in first examples the compiler, takes its time for."""
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "kanawa", deadline=None, suppress_health_check=slow, derandomize=not _DRAWS_ANEW
    )
    hypothesis.settings.load_profile("kanawa")


@pytest.fixture
def record_drill(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Returns what a drill calls with the line that is shown at the end of the session, by any number of workers."""
    return lambda line: record_property(_NAME, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes the lines of all drills."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, line in getattr(report, "user_properties", ()):
                if name == _NAME and report.when == "call":
                    terminalreporter.write_line(str(line))
