"""Config tests run with no catalog connected, whatever other tests did."""

from collections.abc import Iterator

import pytest
from kanawa.config import callables


@pytest.fixture(autouse=True)
def _no_catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(callables.Catalog, "load", None)
    yield
