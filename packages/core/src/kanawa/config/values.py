"""What a config may hold, compared, hashed and copied by value."""

from collections.abc import Iterator
from typing import Any

from kanawa.errors import ConfigError


class FrozenConfigError(ConfigError, AttributeError):
    """A frozen config was asked to change."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is frozen; clone() returns a mutable copy")


class Node:
    """Marks config records, so that values can be recognised without importing the record."""

    __slots__ = ()

    def clone(self) -> Any:
        """Returns a mutable copy."""
        raise TypeError

    def freeze_in_place(self) -> None:
        """Freezes this node alone."""
        raise TypeError


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    kind = "list" if isinstance(self, list) else "dict"
    what = f"this {kind} of a config"
    raise FrozenConfigError(what)


class FrozenList(list[Any]):
    """The list of a frozen config: equal to a list, refuses to change."""

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class FrozenDict(dict[str, Any]):
    """The dict of a frozen config: equal to a dict, refuses to change."""

    update = setdefault = pop = popitem = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


ATOMS = frozenset({type(None), bool, int, float, str})


def copy_value(value: Any) -> Any:
    """Returns an independent, mutable copy: configs cloned, containers rebuilt, the rest as is."""
    if type(value) in ATOMS:
        return value
    if isinstance(value, Node):
        return value.clone()
    if isinstance(value, list):
        return [copy_value(v) for v in value]
    if isinstance(value, tuple):
        return tuple(copy_value(v) for v in value)
    if isinstance(value, dict):
        return {k: copy_value(v) for k, v in value.items()}
    return value


def freeze_value(value: Any) -> Any:
    """Returns the value with containers that refuse change; configs inside stay as they are."""
    if isinstance(value, list):
        return FrozenList(freeze_value(v) for v in value)
    if isinstance(value, tuple):
        return tuple(freeze_value(v) for v in value)
    if isinstance(value, dict):
        return FrozenDict((k, freeze_value(v)) for k, v in value.items())
    return value


def is_copied(value: Any) -> bool:
    """Returns whether instances must not share this value."""
    return isinstance(value, Node | list | dict) or (isinstance(value, tuple) and any(is_copied(v) for v in value))


def items_of(container: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (key or index, value) of a list, tuple or dict."""
    return iter(container.items()) if isinstance(container, dict) else enumerate(container)


def holds_config(value: Any) -> bool:
    """Returns whether the value is a config, or a container with one somewhere inside."""
    if isinstance(value, Node):
        return True
    if isinstance(value, list | tuple | dict):
        return any(holds_config(v) for _, v in items_of(value))
    return False


def same_value(a: Any, b: Any) -> bool:
    """Compares by kind and value: 1 is not 1.0 or True, and nan is itself."""
    if a is b:
        return True
    if isinstance(a, list):
        return isinstance(b, list) and _same_sequence(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_value(v, b[k]) for k, v in a.items())
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return _same_sequence(a, b)
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


def _same_sequence(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))


def hash_value(value: Any) -> int:
    """Hashes so that values equal under `same_value` hash alike."""
    if isinstance(value, list | tuple):
        return hash((type(value) is tuple, tuple(hash_value(v) for v in value)))
    if isinstance(value, dict):
        return hash(frozenset((k, hash_value(v)) for k, v in value.items()))
    if isinstance(value, float):
        return hash(repr(value))
    return hash(value)
