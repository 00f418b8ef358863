"""Mask predicates of a test's own in the catalog, for as long as it runs."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kanawa.plugins import PluginHost, host, set_host
from kanawa.plugins.discovery import Entry, Provider, discover


@contextlib.contextmanager
def named_masks(**predicates: Callable[..., Any]) -> Iterator[None]:
    """Has these masks in the catalog, beside what is installed."""
    entries = tuple(Entry(kind="masks", name=name, value=f"mask_predicates:{name}") for name in predicates)
    before = host()
    with pytest.MonkeyPatch.context() as patch:
        # Under pytest's importlib mode a test's file has no name that a plugin could give.
        patch.setitem(sys.modules, "mask_predicates", SimpleNamespace(**predicates))
        set_host(PluginHost(discover=lambda: [*discover(), Provider(name="mine", version="1", entries=entries)]))
        try:
            yield
        finally:
            set_host(before)
