"""Parameter trees are nested dictionaries; these give every leaf its dotted path and back."""

from collections.abc import Callable, Mapping
from typing import Any

Tree = dict[str, Any]


def flatten_paths(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"a.b.c": leaf} for nested dictionaries, in the tree's own order; anything else is a leaf."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping):
            flat.update(flatten_paths(value, path))
        else:
            flat[path] = value
    return flat


def unflatten_paths(flat: Mapping[str, Any]) -> Tree:
    """Returns the nested dictionaries of a flat {"a.b.c": leaf}."""
    tree: Tree = {}
    for path, leaf in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def map_paths(function: Callable[[str, Any], Any], tree: Mapping[str, Any]) -> Tree:
    """Returns the tree with each leaf replaced by `function(path, leaf)`."""
    return unflatten_paths({path: function(path, leaf) for path, leaf in flatten_paths(tree).items()})


def merge_trees(first: Mapping[str, Any], second: Mapping[str, Any]) -> Tree:
    """Returns `first` with the leaves of `second` laid over it, recursively."""
    merged: Tree = dict(first)
    for name, value in second.items():
        below = merged.get(name)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[name] = merge_trees(below, value)
        else:
            merged[name] = value
    return merged
