"""The flat dump: one `path: value` per line, for golden files and readable differences."""

from typing import Any

from kanawa.config.callables import callable_name
from kanawa.config.paths import Key, join_path, sort_key
from kanawa.config.record import Config
from kanawa.config.traverse import leaf_keys, walk_keys
from kanawa.config.value_text import node_text, value_text
from kanawa.config.values import same_value

ROOT = "."


def to_text(cfg: Config) -> str:
    """Returns the dump: every value, and every node's class as `path: module:Class`, sorted.

    The root's own line has the path `.`. The same config has the same text in every process.
    """
    lines = {keys: node_text(node, callable_name) for keys, node in walk_keys(cfg)}
    lines |= {keys: value_text(value, callable_name) for keys, value in leaf_keys(cfg)}
    lines = _without_usual(cfg, lines)
    ordered = sorted(lines, key=sort_key)
    return "".join(f"{path_text(keys)}: {lines[keys]}\n" for keys in ordered)


def path_text(keys: tuple[Key, ...]) -> str:
    """Returns a path for display; the root is `.`."""
    return join_path(keys) or ROOT


def flat(cfg: Config) -> dict[tuple[Key, ...], Any]:
    """Returns every leaf value, and every node's class text, by keys."""
    entries: dict[tuple[Key, ...], Any] = {k: NodeClass(node_text(n)) for k, n in walk_keys(cfg)}
    entries.update(leaf_keys(cfg))
    return _without_usual(cfg, entries)


def _without_usual(cfg: Config, entries: dict[tuple[Key, ...], Any]) -> dict[tuple[Key, ...], Any]:
    """Leaves out INTRINSIC fields that have their class's default, with all inside them."""
    usual = {
        (*keys, name)
        for keys, node in walk_keys(cfg)
        for name in node._schema.intrinsic
        if same_value(vars(node)[name], node._schema.fields[name].default)
    }
    if not usual:
        return entries
    return {k: v for k, v in entries.items() if not any(k[:n] in usual for n in range(1, len(k) + 1))}


class NodeClass(str):
    """The class of a node, standing for the node itself in a flat listing."""

    __slots__ = ()
