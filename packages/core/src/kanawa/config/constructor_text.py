"""The `repr` of configs: the call that makes an equal one, without the fields that have their defaults."""

import enum
import math
from typing import Any

from kanawa.config.callables import CallableNameError, public_name
from kanawa.config.sentinels import Sentinel
from kanawa.config.values import Node, same_value

_WIDTH = 100


def constructor_text(value: Any, indent: int = 0) -> str:
    """Returns Python that makes an equal value, on several lines where one would be longer than 100 characters.

    Classes go by their qualified names, functions by their public `module.attribute`.
    """
    if isinstance(value, Node):
        return _node_text(value, indent)
    if isinstance(value, list | tuple):
        brackets = "[]" if isinstance(value, list) else ("(,)" if len(value) == 1 else "()")
        return _joined(brackets[0], [("", v) for v in value], brackets[1:], indent)
    if isinstance(value, dict):
        return _joined("{", [(f"{k!r}: ", v) for k, v in value.items()], "}", indent)
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return _name(value) if callable(value) and not isinstance(value, Sentinel) else repr(value)


def _node_text(node: Any, indent: int) -> str:
    defaults = node.fields()
    set_here = [(k, v) for k, v in vars(node).items() if not same_value(v, defaults[k].default)]
    # What describes the class itself, such as foreign names, comes last.
    parts = [(f"{k}=", v) for k, v in sorted(set_here, key=lambda item: item[0] in node._schema.intrinsic)]
    if node.callee is None:
        return _joined(f"{type(node).__qualname__}(", parts, ")", indent)
    return _joined("config_for(", [("", node.callee), *parts], ")", indent)


def _joined(start: str, parts: list[tuple[str, Any]], end: str, indent: int) -> str:
    line = start + ", ".join(prefix + constructor_text(value) for prefix, value in parts) + end
    if not parts or ("\n" not in line and indent + len(line) <= _WIDTH):
        return line
    below = "\n" + " " * (indent + 4)
    lines = [below + prefix + constructor_text(value, indent + 4) + "," for prefix, value in parts]
    return start + "".join(lines) + "\n" + " " * indent + end.removeprefix(",")


def _name(value: Any) -> str:
    try:
        return public_name(value).replace(":", ".")
    except CallableNameError:
        return repr(value)
