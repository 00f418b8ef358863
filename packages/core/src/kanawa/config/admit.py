"""Admitting values into fields: each function checks one kind of value and returns what to store.

`copy` says whether configs are cloned on the way in; freezing checks again without cloning.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any

from kanawa.config.callables import CallableNameError, public_name
from kanawa.config.ranges import Range
from kanawa.config.values import ATOMS, Node
from kanawa.errors import ConfigError

Admit = Callable[[Any, bool], Any]

_ANYTHING = "None, bool, int, float, str, Enum, Config, class, function, or tuple/list/dict of these"


class Mismatch(Exception):
    """A value is not of the declared type; the field adds its name before the user sees it."""

    def __init__(self, value: Any, expected: str, where: str = "", reason: str = "") -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected
        self.where = where
        self.reason = reason

    def inside(self, key: str) -> "Mismatch":
        """Returns the same mismatch, one container further out."""
        return Mismatch(self.value, self.expected, key + self.where, self.reason)


def admit_none(value: Any, copy: bool) -> None:
    """Admits None."""
    if value is not None:
        raise Mismatch(value, "None")


def admit_bool(value: Any, copy: bool) -> bool:
    """Admits True and False."""
    if type(value) is not bool:
        raise Mismatch(value, "bool")
    return value


def admit_int(value: Any, copy: bool) -> int:
    """Admits integers of 64 bits, not booleans."""
    if not isinstance(value, int) or type(value) is bool:
        raise Mismatch(value, "int")
    if not -(2**63) <= value < 2**64:
        raise Mismatch(value, "int", reason="it doesn't fit 64 bits")
    return value if type(value) is int else int(value)


def admit_float(value: Any, copy: bool) -> float:
    """Admits floats, and integers by conversion."""
    if type(value) is float:
        return value
    if isinstance(value, int | float) and type(value) is not bool:
        try:
            return float(value)
        except OverflowError:
            raise Mismatch(value, "float", reason="it doesn't fit 64 bits") from None
    raise Mismatch(value, "float")


def admit_str(value: Any, copy: bool) -> str:
    """Admits strings."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise Mismatch(value, "str")


def admit_any(value: Any, copy: bool) -> Any:
    """Admits whatever a config may hold."""
    if type(value) in ATOMS or isinstance(value, enum.Enum):
        return value
    if isinstance(value, Node):
        return value.clone() if copy else value
    if isinstance(value, list):
        return _sequence_items(value, admit_any, copy)
    if isinstance(value, tuple):
        return tuple(_sequence_items(value, admit_any, copy))
    if isinstance(value, dict):
        return _dict_items(value, admit_any, copy)
    for kind, admit in ((int, admit_int), (float, admit_float), (str, admit_str)):
        if isinstance(value, kind):
            return admit(value, copy)
    if callable(value):
        return admit_callable(value, copy)
    raise Mismatch(value, _ANYTHING)


def admit_callable(value: Any, copy: bool) -> Any:
    """Admits a callable that another process can find by name."""
    if not callable(value) or isinstance(value, Node):
        raise Mismatch(value, "a callable")
    _require_name(value, "a callable")
    return value


def admit_class(base: Any, expected: str) -> Admit:
    """Returns the admission of `type[base]`; `base` may be a tuple of classes."""

    def admit(value: Any, copy: bool) -> Any:
        if not isinstance(value, type) or not issubclass(value, base):
            raise Mismatch(value, expected)
        _require_name(value, expected)
        return value

    return admit


def _require_name(value: Any, expected: str) -> None:
    try:
        public_name(value)
    except CallableNameError as error:
        raise Mismatch(value, expected, reason=str(error)) from None
    except TypeError as error:
        raise Mismatch(value, expected, reason=f"it is not hashable ({error})") from None


def admit_instance(cls: type, expected: str) -> Admit:
    """Returns the admission of an Enum's members."""

    def admit(value: Any, copy: bool) -> Any:
        if not isinstance(value, cls):
            raise Mismatch(value, expected)
        return value

    return admit


def admit_config(cls: type, expected: str) -> Admit:
    """Returns the admission of a config class and its subclasses, cloned."""

    def admit(value: Any, copy: bool) -> Any:
        if not isinstance(value, cls):
            reason = ""
            if isinstance(value, type) and hasattr(value, "Config"):
                reason = f"it is a class; write {value.__qualname__}.Config(...)"
            raise Mismatch(value, expected, reason=reason)
        return value.clone() if copy else value  # type: ignore[attr-defined]

    return admit


def admit_literal(choices: tuple[Any, ...], expected: str) -> Admit:
    """Returns the admission of listed values, compared by type too."""

    def admit(value: Any, copy: bool) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise Mismatch(value, expected)

    return admit


def admit_union(members: Sequence[Admit], expected: str) -> Admit:
    """Returns the admission by any member, preferring one that needs no conversion."""
    if len(members) == 2 and admit_none in members:
        other = members[0] if members[1] is admit_none else members[1]
        return _admit_optional(other, expected)

    def admit(value: Any, copy: bool) -> Any:
        admitted: list[Any] = []
        reasons: list[str] = []
        for member in members:
            try:
                result = member(value, copy)
            except Mismatch as mismatch:
                reasons.append(mismatch.reason)
                continue
            if type(result) is type(value):
                return result
            admitted.append(result)
        if not admitted:
            reason = next(filter(None, reasons), "")
            raise Mismatch(value, expected, reason=reason)
        return admitted[0]

    return admit


def _admit_optional(other: Admit, expected: str) -> Admit:
    def admit(value: Any, copy: bool) -> Any:
        if value is None:
            return None
        try:
            return other(value, copy)
        except Mismatch as mismatch:
            if mismatch.where:
                raise
            raise Mismatch(value, expected, reason=mismatch.reason) from None

    return admit


def admit_range(number: Admit, ranges: Sequence[Range], expected: str) -> Admit:
    """Returns the admission of what `number` admits and every range holds."""

    def admit(value: Any, copy: bool) -> Any:
        try:
            admitted = number(value, copy)
        except Mismatch as mismatch:
            raise Mismatch(value, expected, mismatch.where, mismatch.reason) from None
        for each in ranges:
            if admitted not in each:
                raise Mismatch(value, expected, reason=each.beyond(admitted))
        return admitted

    return admit


def admit_list(item: Admit, expected: str) -> Admit:
    """Returns the admission of a list; a tuple is converted."""

    def admit(value: Any, copy: bool) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Mismatch(value, expected)
        return _sequence_items(value, item, copy)

    return admit


def admit_tuple(item: Admit, expected: str) -> Admit:
    """Returns the admission of a tuple of any length; a list is converted."""

    def admit(value: Any, copy: bool) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise Mismatch(value, expected)
        return tuple(_sequence_items(value, item, copy))

    return admit


def admit_fixed_tuple(items: Sequence[Admit], expected: str) -> Admit:
    """Returns the admission of a tuple with one type for each place; a list is converted."""

    def admit(value: Any, copy: bool) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise Mismatch(value, expected)
        return tuple(_inside(item, v, copy, f"[{i}]") for i, (item, v) in enumerate(zip(items, value, strict=True)))

    return admit


def admit_dict(item: Admit, expected: str) -> Admit:
    """Returns the admission of a dict with string keys."""

    def admit(value: Any, copy: bool) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch(value, expected)
        return _dict_items(value, item, copy)

    return admit


def _sequence_items(value: Sequence[Any], item: Admit, copy: bool) -> list[Any]:
    return [_inside(item, v, copy, f"[{i}]") for i, v in enumerate(value)]


def _dict_items(value: dict[Any, Any], item: Admit, copy: bool) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise Mismatch(value, "a dict with str keys", reason=f"the key {key!r} is not a str")
    return {str(k): _inside(item, v, copy, f"[{k!r}]") for k, v in value.items()}


def _inside(item: Admit, value: Any, copy: bool, key: str) -> Any:
    try:
        return item(value, copy)
    except Mismatch as mismatch:
        raise mismatch.inside(key) from None


class FieldTypeError(ConfigError):
    """A value has the wrong type for its field, or an annotation is not one a config can hold."""
