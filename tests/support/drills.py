"""Drills say what they counted, also in a quiet test run: "drill: 20 of 20 kills resumed bit for bit"."""

from collections.abc import Callable

import pytest

_NAME = "drill"


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
