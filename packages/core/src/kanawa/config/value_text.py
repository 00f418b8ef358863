"""How config values read: on one line in dumps, origins and errors, and as the Python that makes them in `repr`."""

import enum
import math
from collections.abc import Callable
from typing import Any

from kanawa.config.callables import CallableNameError, public_name
from kanawa.config.sentinels import Sentinel
from kanawa.config.values import ATOMS, Node, same_value

_WIDTH = 100
#: Writes what is no container, at an indentation.
_Leaf = Callable[[Any, int], str]


def value_text(value: Any) -> str:
    """Returns one line that is the same in every process: Python literals, names for the rest."""
    return _written(value, _name, math.inf)


def node_text(node: Any) -> str:
    """Returns what a config node configures: `module:Class`, or the callable's name."""
    if node.callee is not None:
        return public_name(node.callee)
    cls = node._target or type(node)
    return f"{cls.__module__}:{cls.__qualname__}"


def constructor_text(value: Any, indent: int = 0) -> str:
    """Returns Python that makes an equal value, on several lines where one would be longer than 100 characters.

    Fields at their defaults are left out. Classes go by their qualified names, functions by `module.attribute`.
    """
    return _written(value, _constructor, _WIDTH, indent)


def found_text(value: Any) -> str:
    """Returns a value with its type for an error message, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists in lists
        text = "a value too large to show"
    if len(text) > 80:
        text = text[:77] + "..."
    return f"{text} ({type(value).__qualname__})"


def _name(value: Any, indent: int) -> str:
    if type(value) in ATOMS or isinstance(value, Sentinel):
        return repr(value)
    return node_text(value) if isinstance(value, Node) else public_name(value)


def _constructor(value: Any, indent: int) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, Node):
        return _call(value, indent)
    if not callable(value) or isinstance(value, Sentinel):
        return repr(value)
    try:
        return public_name(value).replace(":", ".")
    except CallableNameError:
        return repr(value)


def _call(node: Any, indent: int) -> str:
    defaults = node.fields()
    set_here = [(k, v) for k, v in vars(node).items() if not same_value(v, defaults[k].default)]
    # What describes the class itself, such as foreign names, comes last.
    parts = [(f"{k}=", v) for k, v in sorted(set_here, key=lambda item: item[0] in node._schema.intrinsic)]
    callee = [] if node.callee is None else [("", node.callee)]
    name = "config_for" if callee else type(node).__qualname__
    return _joined(f"{name}(", [*callee, *parts], ")", _constructor, _WIDTH, indent)


def _written(value: Any, leaf: _Leaf, width: float, indent: int = 0) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, list | tuple):
        brackets = "[]" if isinstance(value, list) else ("(,)" if len(value) == 1 else "()")
        return _joined(brackets[0], [("", v) for v in value], brackets[1:], leaf, width, indent)
    if isinstance(value, dict):
        return _joined("{", [(f"{k!r}: ", v) for k, v in value.items()], "}", leaf, width, indent)
    return leaf(value, indent)


def _joined(start: str, parts: list[tuple[str, Any]], end: str, leaf: _Leaf, width: float, indent: int) -> str:
    line = start + ", ".join(prefix + _written(value, leaf, width) for prefix, value in parts) + end
    if not parts or ("\n" not in line and indent + len(line) <= width):
        return line
    below = "\n" + " " * (indent + 4)
    lines = [below + prefix + _written(value, leaf, width, indent + 4) + "," for prefix, value in parts]
    return start + "".join(lines) + "\n" + " " * indent + end.removeprefix(",")
