"""How a config value reads in dumps, origins and errors: Python literals, names for the rest."""

import enum
from collections.abc import Callable
from typing import Any

from kanawa.config.callables import public_name
from kanawa.config.sentinels import Sentinel
from kanawa.config.values import ATOMS, Node


def value_text(value: Any, name_of: Callable[[Any], str] = public_name) -> str:
    """Returns one line that is the same in every process."""
    if type(value) in ATOMS or isinstance(value, Sentinel):
        return repr(value)
    if isinstance(value, Node):
        return node_text(value, name_of)
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, list):
        return "[" + ", ".join(value_text(v, name_of) for v in value) + "]"
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return "(" + ", ".join(value_text(v, name_of) for v in value) + comma + ")"
    if isinstance(value, dict):
        pairs = (f"{k!r}: {value_text(v, name_of)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    return name_of(value)


def node_text(node: Any, name_of: Callable[[Any], str] = public_name) -> str:
    """Returns what a config node configures: `module:Class`, or the callable's name."""
    if node.callee is not None:
        return name_of(node.callee)
    cls = node._target or type(node)
    return f"{cls.__module__}:{cls.__qualname__}"


def found_text(value: Any) -> str:
    """Returns a value with its type for an error message, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists in lists
        text = "a value too large to show"
    if len(text) > 80:
        text = text[:77] + "..."
    return f"{text} ({type(value).__qualname__})"
