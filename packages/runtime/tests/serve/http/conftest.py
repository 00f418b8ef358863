"""One server for all tests that change nothing of it."""

import pytest

from .running_server import running_server
from .scripted_engine import ScriptedEngine


@pytest.fixture(scope="session")
def server():
    """A server before a scripted engine."""
    with running_server(ScriptedEngine(step_seconds=0.0005)) as running:
        yield running
