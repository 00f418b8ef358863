"""The differences between two configs, value by value."""

from typing import Any, NamedTuple

from kanawa.config.callables import callable_name
from kanawa.config.json_form import encode_value
from kanawa.config.paths import sort_key
from kanawa.config.record import Config
from kanawa.config.sentinels import ABSENT
from kanawa.config.text import NodeClass, flat, path_text
from kanawa.config.value_text import value_text
from kanawa.config.values import same_value


class Change(NamedTuple):
    """One place that differs; ABSENT where a side has no such path. A node shows as its class."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.path}: {_text(self.old)} -> {_text(self.new)}"

    def to_json(self) -> dict[str, Any]:
        """Returns the change for a machine; an absent side is null."""
        return {"path": self.path, "old": _json(self.old), "new": _json(self.new)}


def diff(a: Config, b: Config) -> list[Change]:
    """Returns what changed from `a` to `b`, in path order; origins don't count."""
    old, new = flat(a), flat(b)
    changes = []
    for keys in sorted(old.keys() | new.keys(), key=sort_key):
        before, after = old.get(keys, ABSENT), new.get(keys, ABSENT)
        if not same_value(before, after):
            changes.append(Change(path_text(keys), before, after))
    return changes


def _text(value: Any) -> str:
    return str(value) if isinstance(value, NodeClass) else value_text(value, callable_name)


def _json(value: Any) -> Any:
    if value is ABSENT:
        return None
    return str(value) if isinstance(value, NodeClass) else encode_value(value)
