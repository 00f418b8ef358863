"""The flat dump, one `path: value` per line, for golden files, and the differences between two configs."""

from typing import Any, NamedTuple

from kanawa.config.json_form import encode_value
from kanawa.config.paths import Key, join_path, sort_key
from kanawa.config.record import Config
from kanawa.config.sentinels import ABSENT
from kanawa.config.traverse import leaf_keys, walk_keys
from kanawa.config.value_text import node_text, value_text
from kanawa.config.values import same_value


class _NodeClass(str):
    """The class of a node, standing for the node itself in a flat listing."""

    __slots__ = ()


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


def to_text(cfg: Config) -> str:
    """Returns the dump: every value, and every node's class as `path: module:Class`, sorted.

    The root's own line has the path `.`. The same config has the same text in every process.
    """
    lines = _flat(cfg)
    return "".join(f"{_path(keys)}: {_text(lines[keys])}\n" for keys in sorted(lines, key=sort_key))


def diff(a: Config, b: Config) -> list[Change]:
    """Returns what changed from `a` to `b`, in path order; origins don't count."""
    old, new = _flat(a), _flat(b)
    both = [(k, old.get(k, ABSENT), new.get(k, ABSENT)) for k in sorted(old.keys() | new.keys(), key=sort_key)]
    return [Change(_path(keys), before, after) for keys, before, after in both if not same_value(before, after)]


def _flat(cfg: Config) -> dict[tuple[Key, ...], Any]:
    """Returns every leaf value, and every node's class text, by keys; without INTRINSIC fields at their defaults."""
    entries: dict[tuple[Key, ...], Any] = {k: _NodeClass(node_text(n)) for k, n in walk_keys(cfg)}
    entries.update(leaf_keys(cfg))
    usual = {
        (*keys, name)
        for keys, node in walk_keys(cfg)
        for name in node._schema.intrinsic
        if same_value(vars(node)[name], node._schema.fields[name].default)
    }
    return {k: v for k, v in entries.items() if not any(k[:n] in usual for n in range(1, len(k) + 1))}


def _path(keys: tuple[Key, ...]) -> str:
    return join_path(keys) or "."


def _text(value: Any) -> str:
    return str(value) if isinstance(value, _NodeClass) else value_text(value)


def _json(value: Any) -> Any:
    if value is ABSENT:
        return None
    return str(value) if isinstance(value, _NodeClass) else encode_value(value)
