"""From a type annotation to the function that admits values of it and returns what to store."""

import collections.abc
import enum
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from kanawa.config.callables import CallableNameError, public_name
from kanawa.config.ranges import Named, Range
from kanawa.config.values import ATOMS, Node
from kanawa.errors import ConfigError

#: (value, whether configs are cloned on the way in) -> what to store; freezing checks again without cloning.
Admit = Callable[[Any, bool], Any]
_ANYTHING = "None, bool, int, float, str, Enum, Config, class, function, or tuple/list/dict of these"


class FieldTypeError(ConfigError):
    """A value has the wrong type for its field, or an annotation is not one a config can hold."""


class Mismatch(Exception):
    """A value is not of the declared type; the field adds its name, and its type where `expected` is empty."""

    def __init__(self, value: Any, reason: str = "", expected: str = "", where: str = "") -> None:
        super().__init__(expected)
        self.value = value
        self.reason = reason
        self.expected = expected
        self.where = where


@dataclass(frozen=True, slots=True)
class FieldType:
    """A resolved annotation, its text for messages, and the function that admits values."""

    annotation: Any
    text: str
    admit: Admit

    def admit_inside(self, value: Any, copy: bool, key: str) -> Any:
        """Returns what to store for the value at `key` of a container."""
        try:
            return self.admit(value, copy)
        except Mismatch as found:
            raise Mismatch(found.value, found.reason, found.expected or self.text, key + found.where) from None

    def mentions(self, *kinds: str) -> bool:
        """Returns whether "callable", "class", "config", "enum" or "any" occurs in the annotation."""
        return any(_kind_of(part) in kinds for part in parts_of(self.annotation))

    @property
    def named(self) -> str:
        """The kind of component that a name stands for here; empty where it may be any."""
        marks = [each for part in parts_of(self.annotation) for each in getattr(part, "__metadata__", ())]
        return next((each.kind for each in marks if isinstance(each, Named)), "")

    def enums(self) -> list[type[enum.Enum]]:
        """Returns the Enum classes in the annotation."""
        return [part for part in parts_of(self.annotation) if _kind_of(part) == "enum"]


def field_type(annotation: Any) -> FieldType:
    """Compiles an annotation; raises FieldTypeError for one a config can't hold."""
    return FieldType(annotation, annotation_text(annotation), _compile(annotation))


def annotation_text(annotation: Any) -> str:
    """Returns an annotation as one would write it."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if isinstance(annotation, list):
        return f"[{', '.join(map(annotation_text, annotation))}]"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(map(annotation_text, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin is Annotated:
        return " ".join([annotation_text(args[0]), *(f"({each})" for each in _ranges(args))])
    if isinstance(origin, type) and args:
        return f"{origin.__qualname__}[{', '.join(map(annotation_text, args))}]"
    if isinstance(annotation, type):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def _ranges(args: tuple[Any, ...]) -> list[Range]:
    """Returns the ranges of an Annotated; what else it carries is for others to read."""
    return [each for each in args[1:] if isinstance(each, Range)]


def parts_of(annotation: Any) -> list[Any]:
    """Returns the annotation and everything inside it, but for arguments of Callable and type."""
    origin = get_origin(annotation)
    if origin in (Literal, type, collections.abc.Callable):
        return [annotation]
    return [annotation, *(p for arg in get_args(annotation) for p in parts_of(arg))]


def _kind_of(part: Any) -> str:
    if get_origin(part) is collections.abc.Callable or part in (collections.abc.Callable, typing.Callable):
        return "callable"
    if get_origin(part) is type or part is type:
        return "class"
    if isinstance(part, type) and issubclass(part, Node):
        return "config"
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return "enum"
    return "any" if part is Any else "other"


def admit_any(value: Any, copy: bool) -> Any:
    """Admits whatever a config may hold."""
    if type(value) in ATOMS or isinstance(value, enum.Enum):
        return value
    if isinstance(value, Node):
        return value.clone() if copy else value
    # Subclasses of numbers and texts, such as NumPy's, become Python's own.
    for kind in (list, tuple, dict, int, float, str):
        if isinstance(value, kind):
            return _PLAIN[kind](value, copy)
    if callable(value):
        return _admit_callable(value, copy)
    raise Mismatch(value, expected=_ANYTHING)


def _admit_none(value: Any, copy: bool) -> None:
    if value is not None:
        raise Mismatch(value)


def _admit_bool(value: Any, copy: bool) -> bool:
    if type(value) is not bool:
        raise Mismatch(value)
    return value


def _admit_int(value: Any, copy: bool) -> int:
    if not isinstance(value, int) or type(value) is bool:
        raise Mismatch(value)
    if not -(2**63) <= value < 2**64:
        raise Mismatch(value, "it doesn't fit 64 bits")
    return value if type(value) is int else int(value)


def _admit_float(value: Any, copy: bool) -> float:
    if type(value) is float:
        return value
    if not isinstance(value, int | float) or type(value) is bool:
        raise Mismatch(value)
    try:
        return float(value)
    except OverflowError:
        raise Mismatch(value, "it doesn't fit 64 bits") from None


def _admit_str(value: Any, copy: bool) -> str:
    if not isinstance(value, str):
        raise Mismatch(value)
    return value if type(value) is str else str.__str__(value)


def _admit_callable(value: Any, copy: bool) -> Any:
    if not callable(value) or isinstance(value, Node):
        raise Mismatch(value, expected="a callable")
    return _named(value, "a callable")


def _named(value: Any, expected: str = "") -> Any:
    """Returns a callable that another process can find by name."""
    try:
        public_name(value)
    except CallableNameError as error:
        raise Mismatch(value, str(error), expected) from None
    except TypeError as error:
        raise Mismatch(value, f"it is not hashable ({error})", expected) from None
    return value


def _admit_class(base: Any) -> Admit:
    """Returns the admission of `type[base]`; `base` may be a tuple of classes."""

    def admit(value: Any, copy: bool) -> Any:
        if not isinstance(value, type) or not issubclass(value, base):
            raise Mismatch(value)
        return _named(value)

    return admit


def _admit_instance(cls: type) -> Admit:
    """Returns the admission of an Enum's members, or of a Config class and its subclasses."""

    def admit(value: Any, copy: bool) -> Any:
        if isinstance(value, cls):
            return value.clone() if copy and isinstance(value, Node) else value
        configurable = isinstance(value, type) and issubclass(cls, Node) and hasattr(value, "Config")
        raise Mismatch(value, f"it is a class; write {value.__qualname__}.Config(...)" if configurable else "")

    return admit


def _admit_literal(choices: tuple[Any, ...]) -> Admit:
    """Returns the admission of listed values, compared by type too."""

    def admit(value: Any, copy: bool) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise Mismatch(value)

    return admit


def _admit_union(members: Sequence[Admit]) -> Admit:
    """Returns the admission by any member, preferring one that needs no conversion."""

    def admit(value: Any, copy: bool) -> Any:
        if value is None and _admit_none in members:
            return None
        admitted: list[Any] = []
        refused: list[Mismatch] = []
        for member in members:
            try:
                result = member(value, copy)
            except Mismatch as mismatch:
                refused.append(mismatch)
                continue
            if type(result) is type(value):
                return result
            admitted.append(result)
        if admitted:
            return admitted[0]
        inside = [mismatch for mismatch in refused if mismatch.where]
        if len(inside) == 1:
            raise inside[0]
        raise Mismatch(value, next((m.reason for m in refused if m.reason), ""))

    return admit


def _admit_range(number: Admit, ranges: Sequence[Range]) -> Admit:
    """Returns the admission of what `number` admits and every range holds."""

    def admit(value: Any, copy: bool) -> Any:
        admitted = number(value, copy)
        for each in ranges:
            if admitted not in each:
                raise Mismatch(value, each.beyond(admitted))
        return admitted

    return admit


def _admit_list(item: FieldType) -> Admit:
    """Returns the admission of a list; a tuple is converted."""

    def admit(value: Any, copy: bool) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Mismatch(value)
        return [item.admit_inside(v, copy, f"[{i}]") for i, v in enumerate(value)]

    return admit


def _admit_tuple(item: FieldType) -> Admit:
    """Returns the admission of a tuple of any length; a list is converted."""
    items = _admit_list(item)
    return lambda value, copy: tuple(items(value, copy))


def _admit_fixed_tuple(items: Sequence[FieldType]) -> Admit:
    """Returns the admission of a tuple with one type for each place; a list is converted."""

    def admit(value: Any, copy: bool) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise Mismatch(value)
        return tuple(item.admit_inside(v, copy, f"[{i}]") for i, (item, v) in enumerate(zip(items, value, strict=True)))

    return admit


def _admit_dict(item: FieldType) -> Admit:
    """Returns the admission of a dict with string keys."""

    def admit(value: Any, copy: bool) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch(value)
        for key in value:
            if not isinstance(key, str):
                raise Mismatch(value, f"the key {key!r} is not a str", "a dict with str keys")
        return {str(k): item.admit_inside(v, copy, f"[{k!r}]") for k, v in value.items()}

    return admit


ANYTHING = FieldType(Any, "Any", admit_any)
_PLAIN: dict[Any, Admit] = {
    Any: admit_any,
    object: admit_any,
    None: _admit_none,
    type(None): _admit_none,
    bool: _admit_bool,
    int: _admit_int,
    float: _admit_float,
    str: _admit_str,
    list: _admit_list(ANYTHING),
    tuple: _admit_tuple(ANYTHING),
    dict: _admit_dict(ANYTHING),
    type: _admit_class(object),
    collections.abc.Callable: _admit_callable,
    typing.Callable: _admit_callable,
}


def _compile(annotation: Any) -> Admit:
    if isinstance(annotation, typing.Hashable) and annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, TypeVar):
        return _compile(annotation.__bound__) if annotation.__bound__ else admit_any
    if hasattr(annotation, "__value__"):  # `type Name = ...` of Python 3.12
        return _compile(annotation.__value__)
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, Node | enum.Enum):
        return _admit_instance(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, ranges = _compile(args[0]), _ranges(args)
        return _admit_range(inner, ranges) if ranges else inner
    if origin in (Union, types.UnionType):
        return _admit_union([_compile(a) for a in args])
    if origin is Literal:
        return _admit_literal(args)
    if origin is collections.abc.Callable:
        return _admit_callable
    if origin is type:
        return _admit_class(_class_bound(args[0]))
    if origin is list:
        return _admit_list(field_type(args[0]))
    if origin is collections.abc.Sequence or (origin is tuple and args[1:] == (Ellipsis,)):
        return _admit_tuple(field_type(args[0]))
    if origin is tuple:
        return _admit_fixed_tuple([field_type(a) for a in args])
    if origin in (dict, collections.abc.Mapping) and args[0] is str:
        return _admit_dict(field_type(args[1]))
    raise _unsupported(annotation)


def _class_bound(bound: Any) -> Any:
    if bound is Any or isinstance(bound, TypeVar):
        return object
    if get_origin(bound) in (Union, types.UnionType):
        return tuple(get_args(bound))
    return get_origin(bound) or bound


def _unsupported(annotation: Any) -> FieldTypeError:
    nested = getattr(annotation, "Config", None)
    is_configurable = isinstance(annotation, type) and isinstance(nested, type) and issubclass(nested, Node)
    hint = f"; did you mean {annotation.__qualname__}.Config?" if is_configurable else ""
    return FieldTypeError(
        f"a config can't hold {annotation_text(annotation)}{hint}; annotate with None, bool, "
        "int, float, str, Any, Literal, an Enum, a Config class, type[...], Callable[...], "
        "or a tuple, list, dict[str, ...] or union of these"
    )
