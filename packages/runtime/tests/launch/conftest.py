"""Chips for the tests of all adapters."""

import pytest

from .jobs import DEVICES


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    """The devices of backends that aren't installed here."""
    from kanawa.composition import target
    from kanawa.plugins.devices import own_device

    monkeypatch.setattr(target, "device_specs", lambda: {"cpu": own_device(), **DEVICES})
