"""From a type annotation to the function that admits values of it."""

import collections.abc
import enum
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from kanawa.config import admit
from kanawa.config.admit import Admit, FieldTypeError
from kanawa.config.ranges import Range
from kanawa.config.values import Node


@dataclass(frozen=True, slots=True)
class FieldType:
    """A resolved annotation, its text for messages, and the function that admits values."""

    annotation: Any
    text: str
    admit: Admit

    def mentions(self, *kinds: str) -> bool:
        """Returns whether "callable", "class", "config", "enum" or "any" occurs in the annotation."""
        return any(_kind_of(part) in kinds for part in parts_of(self.annotation))

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
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(annotation_text(a) for a in args)
    if origin is Literal:
        return f"Literal[{', '.join(repr(a) for a in args)}]"
    if origin is Annotated:
        return " ".join([annotation_text(args[0]), *(f"({each})" for each in _ranges(annotation))])
    if isinstance(origin, type) and args:
        name = origin.__qualname__
        return f"{name}[{', '.join(_argument_text(a) for a in args)}]"
    if isinstance(annotation, type):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def _ranges(annotation: Any) -> list[Range]:
    """Returns the ranges of an Annotated; what else it carries is for others to read."""
    return [each for each in get_args(annotation)[1:] if isinstance(each, Range)]


def _argument_text(argument: Any) -> str:
    if isinstance(argument, list):
        return f"[{', '.join(annotation_text(a) for a in argument)}]"
    return annotation_text(argument)


def parts_of(annotation: Any) -> list[Any]:
    """Returns the annotation and everything inside it, but for arguments of Callable and type."""
    origin = get_origin(annotation)
    if origin in (Literal, type, collections.abc.Callable):
        return [annotation]
    return [annotation, *(p for arg in get_args(annotation) for p in parts_of(arg))]


def _kind_of(part: Any) -> str:
    if get_origin(part) is collections.abc.Callable or part in _CALLABLES:
        return "callable"
    if get_origin(part) is type or part is type:
        return "class"
    if isinstance(part, type) and issubclass(part, Node):
        return "config"
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return "enum"
    return "any" if part is Any else "other"


_CALLABLES = (collections.abc.Callable, typing.Callable)

_PLAIN: dict[Any, Admit] = {
    Any: admit.admit_any,
    object: admit.admit_any,
    None: admit.admit_none,
    type(None): admit.admit_none,
    bool: admit.admit_bool,
    int: admit.admit_int,
    float: admit.admit_float,
    str: admit.admit_str,
    list: admit.admit_list(admit.admit_any, "list"),
    tuple: admit.admit_tuple(admit.admit_any, "tuple"),
    dict: admit.admit_dict(admit.admit_any, "dict"),
    type: admit.admit_class(object, "a class"),
    collections.abc.Callable: admit.admit_callable,
    typing.Callable: admit.admit_callable,
}


def _compile(annotation: Any) -> Admit:
    if isinstance(annotation, typing.Hashable) and annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, ranges = _compile(get_args(annotation)[0]), _ranges(annotation)
        return admit.admit_range(inner, ranges, annotation_text(annotation)) if ranges else inner
    if origin is not None:
        return _compile_generic(annotation, origin, get_args(annotation))
    text = annotation_text(annotation)
    if isinstance(annotation, TypeVar):
        return _compile(annotation.__bound__) if annotation.__bound__ else admit.admit_any
    if hasattr(annotation, "__value__"):  # `type Name = ...` of Python 3.12
        return _compile(annotation.__value__)
    if isinstance(annotation, type):
        if issubclass(annotation, Node):
            return admit.admit_config(annotation, text)
        if issubclass(annotation, enum.Enum):
            return admit.admit_instance(annotation, text)
    raise _unsupported(annotation)


def _compile_generic(annotation: Any, origin: Any, args: tuple[Any, ...]) -> Admit:
    text = annotation_text(annotation)
    if origin in (Union, types.UnionType):
        return admit.admit_union([_compile(a) for a in args], text)
    if origin is Literal:
        return admit.admit_literal(args, text)
    if origin is collections.abc.Callable:
        return admit.admit_callable
    if origin is type:
        return admit.admit_class(_class_bound(args[0]), text)
    if origin is list:
        return admit.admit_list(_compile(args[0]), text)
    if origin is collections.abc.Sequence:
        return admit.admit_tuple(_compile(args[0]), text)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return admit.admit_tuple(_compile(args[0]), text)
        return admit.admit_fixed_tuple([_compile(a) for a in args], text)
    if origin in (dict, collections.abc.Mapping):
        if args[0] is not str:
            raise _unsupported(annotation)
        return admit.admit_dict(_compile(args[1]), text)
    raise _unsupported(annotation)


def _class_bound(bound: Any) -> Any:
    if bound is Any or isinstance(bound, TypeVar):
        return object
    if get_origin(bound) in (Union, types.UnionType):
        return tuple(get_args(bound))
    return get_origin(bound) or bound


def _unsupported(annotation: Any) -> FieldTypeError:
    hint = ""
    nested = getattr(annotation, "Config", None)
    if isinstance(annotation, type) and isinstance(nested, type) and issubclass(nested, Node):
        hint = f"; did you mean {annotation.__qualname__}.Config?"
    return FieldTypeError(
        f"a config can't hold {annotation_text(annotation)}{hint or ''}; annotate with None, bool, "
        "int, float, str, Any, Literal, an Enum, a Config class, type[...], Callable[...], "
        "or a tuple, list, dict[str, ...] or union of these"
    )
