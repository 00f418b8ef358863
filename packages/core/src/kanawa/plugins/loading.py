"""Imports what an entry point's value names."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_value(value: str) -> Any:
    """Returns the object at "module:attribute.path", or the module if there is no attribute.

    Raises ImportError, also for a missing attribute, and whatever importing the module raises.
    """
    module_name, _, attributes = value.partition(":")
    found: Any = import_module(module_name.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            message = f"{value}: {error}"
            raise ImportError(message) from error
    return found
