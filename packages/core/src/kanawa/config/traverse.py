"""Walking a config tree, and reading or writing one place in it by path."""

from collections.abc import Callable, Iterator
from typing import Any

from kanawa.config.paths import Key, PathError, join_path, parse_path
from kanawa.config.values import Node, copy_value, holds_config, items_of
from kanawa.errors import did_you_mean

#: What may hold configs. A tuple of classes: a union of them is built anew at every test.
_OPENED = (Node, list, tuple, dict)


def walk_keys(
    value: Any, at: tuple[Key, ...] = (), into: Callable[[Any], bool] | None = None
) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yields (keys, node) for every config in a value, parents first; only those that `into` takes, and none below."""
    if isinstance(value, Node):
        if into is not None and not into(value):
            return
        yield at, value
        for name, inner in vars(value).items():
            if isinstance(inner, _OPENED):
                yield from walk_keys(inner, (*at, name), into)
    elif isinstance(value, list | tuple | dict):
        for key, inner in items_of(value):
            if isinstance(inner, _OPENED):
                yield from walk_keys(inner, (*at, key), into)


def leaf_keys(value: Any, at: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yields (keys, value) for every value that is no config; containers of configs are opened."""
    if isinstance(value, Node):
        for name, inner in vars(value).items():
            yield from leaf_keys(inner, (*at, name))
    elif holds_config(value):
        for key, inner in items_of(value):
            yield from leaf_keys(inner, (*at, key))
    else:
        yield at, value


def get_path(root: Any, path: str) -> Any:
    """Returns the value at a path; raises PathError naming the first part that leads nowhere."""
    keys, value = parse_path(path), root
    for i in range(len(keys)):
        value = _step(value, keys, i, path)
    return value


def owner_of(root: Any, path: str) -> tuple[Any, str, tuple[Key, ...], tuple[Key, ...]]:
    """Returns (node, field, keys inside the field's container, keys of the node) for a path."""
    keys = parse_path(path)
    if not keys:
        message = "the root of a config is not a field; name a field, as in a.b"
        raise PathError(message)
    node, name, at = root, keys[0], 0
    value = root
    for i, key in enumerate(keys):
        if isinstance(value, Node):
            node, name, at = value, key, i
            if str(key) not in vars(value):
                raise _nowhere(value, keys[:i], key, path)
        if i + 1 < len(keys):
            value = _step(value, keys, i, path)
    return node, str(name), keys[at + 1 :], keys[:at]


def container_with(value: Any, at: tuple[Key, ...], keys: tuple[Key, ...], new: Any) -> Any:
    """Returns a copy of the container at path `at` with the place at `keys` in it set to `new`."""
    if not keys:
        return new
    key, rest = keys[0], keys[1:]
    path = join_path((*at, *keys))
    at_key = (*at, key)
    if isinstance(value, dict):
        copied = dict(value)
        if rest and key not in value:
            raise _nowhere(value, at, key, path)
        copied[str(key)] = container_with(value.get(key), at_key, rest, new)
        return copied
    if not isinstance(value, list | tuple) or not _is_index(value, key):
        raise _nowhere(value, at, key, path)
    items = [container_with(v, at_key, rest, new) if i == key else copy_value(v) for i, v in enumerate(value)]
    return tuple(items) if isinstance(value, tuple) else items


def _step(value: Any, keys: tuple[Key, ...], i: int, path: str) -> Any:
    key = keys[i]
    if isinstance(value, Node) and str(key) in vars(value) and isinstance(key, str):
        return vars(value)[key]
    if isinstance(value, dict) and key in value:
        return value[key]
    if isinstance(value, list | tuple) and _is_index(value, key):
        return value[key]  # type: ignore[index]
    raise _nowhere(value, keys[:i], key, path)


def _is_index(value: Any, key: Key) -> bool:
    return isinstance(key, int) and key < len(value)


def _nowhere(value: Any, before: tuple[Key, ...], key: Key, path: str) -> PathError:
    at = join_path(before) or "the root"
    asked = f"path {path!r}: "
    if isinstance(value, Node):
        near = did_you_mean(str(key), vars(value))
        return PathError(f"{asked}{at} ({type(value).__qualname__}) has no field {str(key)!r}{near}")
    if isinstance(value, dict):
        return PathError(f"{asked}{at} has no key {key!r}{did_you_mean(str(key), value)}")
    if isinstance(value, list | tuple):
        return PathError(f"{asked}{at} has {len(value)} items; {key!r} is not one of their indices")
    return PathError(f"{asked}{at} is {value!r}, which has nothing inside")
