"""The fields of one config class: collected when the class is made, typed when first needed.

Annotations are read late: they may name classes that are defined further down the module.
"""

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, ClassVar, ForwardRef, NoReturn, get_args, get_origin

from kanawa.config.field_types import FieldType, FieldTypeError, Mismatch, field_type
from kanawa.config.origin import Origin
from kanawa.config.sentinels import REQUIRED, Sentinel
from kanawa.config.value_text import found_text, value_text
from kanawa.config.values import copy_value, is_copied
from kanawa.errors import ConfigError, did_you_mean

_CLASSVAR = re.compile(r"(\w+\.)*ClassVar\b")
_NAMES = re.compile(r"[^\W\d]\w*")


class SchemaError(ConfigError):
    """A Config class is written in a way that can't work."""


class Field:
    """One typed field: name, default, and the class that declares it."""

    __slots__ = (
        "_captured", "_checked", "_type", "annotation", "default", "home", "line", "name", "owner",
    )  # fmt: skip

    def __init__(self, name: str, annotation: Any, default: Any, owner: type, captured: dict[str, Any]) -> None:
        self.name = name
        self.annotation = annotation
        self.default = default
        self.owner = owner
        self.home = owner
        self.line = ("", 0)
        self._captured = captured
        self._type: FieldType | None = None
        self._checked = isinstance(default, Sentinel)

    def redefaulted(self, default: Any, home: type) -> "Field":
        """Returns this field with a subclass's default."""
        field = Field(self.name, self.annotation, default, self.owner, self._captured)
        field.home = home
        return field

    @property
    def label(self) -> str:
        """Returns `Class.field` for messages."""
        return f"{self.home.__qualname__}.{self.name}"

    @property
    def origin(self) -> Origin:
        """Returns where the default comes from: the class statement."""
        detail = f"{self.home.__module__}:{self.home.__qualname__}"
        return Origin("default", detail, *self.line, value_text(self.default))

    @property
    def type(self) -> FieldType:
        """Returns the type; raises FieldTypeError when the annotation can't be resolved."""
        try:
            return self._resolved()
        except NameError as error:
            message = (
                f"{self.label}: can't resolve the annotation {self.annotation!r} ({error}); "
                f"define or import the name in {self.owner.__module__}"
            )
            raise FieldTypeError(message) from error

    def admit(self, value: Any, where: str = "", copy: bool = True) -> Any:
        """Returns what to store for `value`; raises FieldTypeError naming field, value and type."""
        if isinstance(value, Sentinel):
            return value
        kind = self._type or self.type
        try:
            return kind.admit(value, copy)
        except Mismatch as mismatch:
            self._refuse(mismatch, where)

    def check_default(self) -> bool:
        """Types and converts the default; False while its annotation names something undefined."""
        if self._checked:
            return True
        try:
            self._resolved()
        except NameError:
            return False
        self.default = self.admit(self.default)
        self._checked = True
        return True

    def _resolved(self) -> FieldType:
        if self._type is None:
            hint = resolve_annotation(self.annotation, self.owner, self._captured)
            try:
                self._type = field_type(hint)
            except FieldTypeError as error:
                message = f"{self.label}: {error}"
                raise FieldTypeError(message) from error
        return self._type

    def _refuse(self, mismatch: Mismatch, where: str) -> NoReturn:
        name = (f"{where} ({self.label})" if where else self.label) + mismatch.where
        declared = f" (declared {self.type.text})" if mismatch.where else ""
        reason = f"; {mismatch.reason}" if mismatch.reason else ""
        expected = mismatch.expected or self.type.text
        message = f"{name}: expected {expected}{declared}, got {found_text(mismatch.value)}{reason}"
        raise FieldTypeError(message) from None


@dataclasses.dataclass(eq=False)
class Schema:
    """All fields of a class in order, with its placement, intrinsic and renamed fields."""

    fields: dict[str, Field]
    placement: frozenset[str]
    renamed: dict[str, str]
    intrinsic: frozenset[str] = frozenset()
    _settled: bool = False
    _plain: dict[str, Any] = dataclasses.field(default_factory=dict)
    _copied: tuple[str, ...] = ()

    def start(self) -> dict[str, Any]:
        """Returns a new instance's values: the defaults, copied where sharing would show."""
        if not self._settled:
            self._settle()
        values = dict(self._plain)
        for name in self._copied:
            values[name] = copy_value(values[name])
        return values

    def _settle(self) -> None:
        checked = [field.check_default() for field in self.fields.values()]
        # Until every name in the annotations exists, each new instance tries again.
        self._settled = all(checked)
        self._plain = {name: field.default for name, field in self.fields.items()}
        self._copied = tuple(n for n, v in self._plain.items() if is_copied(v))


def collect_schema(cls: type, frame: types.FrameType) -> Schema:
    """Reads a Config class body, moves its fields out of the class, and returns the schema.

    Fields follow the method resolution order as in a dataclass. Raises SchemaError.
    """
    captured = _function_locals(cls, frame)
    inherited = _inherited(cls)
    own: dict[str, Field] = {}
    annotations = vars(cls).get("__annotations__", {})
    class_variables = {n for n, a in annotations.items() if is_classvar(a)}
    for name, annotation in annotations.items():
        if name in class_variables:
            continue
        _check_name(cls, name, inherited)
        default = vars(cls).get(name, REQUIRED)
        own[name] = Field(name, annotation, default, cls, captured)
    for name, value in list(vars(cls).items()):
        if name in own or name in class_variables:
            continue
        if name in inherited:
            _check_redefault(cls, name, value)
            own[name] = inherited[name].redefaulted(value, cls)
        elif not _may_stay(cls, name, value):
            message = (
                f"{cls.__qualname__}.{name} = {found_text(value)} has no annotation: write "
                f"`{name}: {type(value).__name__} = ...` for a field, or ClassVar for a constant"
            )
            raise SchemaError(message)
    for field in own.values():
        field.line = (frame.f_code.co_filename, frame.f_lineno)
        if field.name in vars(cls):
            delattr(cls, field.name)
    cls._own_fields = own  # type: ignore[attr-defined]
    fields = inherited | own
    return Schema(fields, _named(cls, "PLACEMENT", fields), _renamed(cls, fields), _named(cls, "INTRINSIC", fields))


def unknown_field(cls: type, name: str, fields: dict[str, Field], where: str = "") -> str:
    """Returns the message for a field that a class doesn't have."""
    place = f"{where}: " if where else ""
    return f"{place}{cls.__qualname__} has no field {name!r}{did_you_mean(name, fields)}"


def _inherited(cls: type) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(vars(base).get("_own_fields", {}))
    return fields


def _check_name(cls: type, name: str, inherited: dict[str, Field]) -> None:
    if name.startswith("_"):
        message = f"{cls.__qualname__}.{name}: field names don't start with an underscore"
        raise SchemaError(message)
    if name in inherited:
        return
    for base in cls.__mro__[1:]:
        if name in vars(base):
            message = (
                f"{cls.__qualname__}.{name}: a field can't have the name of {base.__qualname__}'s "
                f"own {name!r}; choose another name"
            )
            raise SchemaError(message)


def _check_redefault(cls: type, name: str, value: Any) -> None:
    if isinstance(value, types.FunctionType | property | classmethod | staticmethod):
        message = f"{cls.__qualname__}.{name}() hides the inherited field {name!r}; choose another name"
        raise SchemaError(message)


def _may_stay(cls: type, name: str, value: Any) -> bool:
    if isinstance(value, property | classmethod | staticmethod):
        return True
    if name.startswith("__") and name.endswith("__"):
        return True
    if isinstance(value, types.FunctionType | type):
        # From the body: a method or nested class. From elsewhere: a forgotten annotation.
        return value.__qualname__.startswith(f"{cls.__qualname__}.")
    if name.startswith(("_abc_", "_schema", "_target")):
        return True
    # A base's ClassVar with a new value.
    return any(is_classvar(a) for a in _annotations_of(cls, name))


def _annotations_of(cls: type, name: str) -> Iterator[Any]:
    for base in cls.__mro__[1:]:
        annotations = vars(base).get("__annotations__", {})
        if name in annotations:
            yield annotations[name]


def _named(cls: type, constant: str, fields: dict[str, Field]) -> frozenset[str]:
    """Returns the fields that a class and its bases list in a constant such as PLACEMENT."""
    names = [n for base in cls.__mro__ for n in vars(base).get(constant, ())]
    for name in names:
        if name not in fields:
            message = f"{constant}: {unknown_field(cls, name, fields)}"
            raise SchemaError(message)
    return frozenset(names)


def _renamed(cls: type, fields: dict[str, Field]) -> dict[str, str]:
    renamed: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        renamed.update(vars(base).get("RENAMED", {}))
    for old, new in renamed.items():
        if old in fields or new not in fields:
            message = (
                f"{cls.__qualname__}.RENAMED maps {old!r} to {new!r}: the old name must not be a "
                f"field and the new one must be; fields: {', '.join(fields)}"
            )
            raise SchemaError(message)
    return renamed


def class_frame() -> types.FrameType:
    """Returns the frame that runs the class statement being processed."""
    frame = sys._getframe(1)
    while frame.f_code.co_name in ("__init_subclass__", "__new__") and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_classvar(annotation: Any) -> bool:
    """Returns whether an annotation, a string perhaps, declares a class variable."""
    if isinstance(annotation, str):
        return _CLASSVAR.match(annotation.strip()) is not None
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _function_locals(cls: type, frame: types.FrameType) -> dict[str, Any]:
    """Returns the local names that string annotations of a class defined in a function refer to."""
    if "<locals>" not in cls.__qualname__:
        return {}
    annotations = vars(cls).get("__annotations__", {}).values()
    wanted = {n for a in annotations if _has_forward(a) for n in _NAMES.findall(str(a))}
    names: dict[str, Any] = {}
    at: types.FrameType | None = frame
    while at is not None and wanted and at.f_code.co_name != "<module>":
        for name in wanted & at.f_locals.keys():
            names.setdefault(name, at.f_locals[name])
        at = at.f_back
    return names


def _has_forward(annotation: Any) -> bool:
    """Returns whether anything in the annotation is still a string to evaluate."""
    if isinstance(annotation, str | ForwardRef):
        return True
    if get_origin(annotation) is typing.Literal:
        return False
    return any(_has_forward(a) for a in get_args(annotation))


def resolve_annotation(annotation: Any, owner: type, captured: dict[str, Any]) -> Any:
    """Evaluates an annotation written in `owner`; raises NameError while a name is not defined yet.

    Names are looked up as Python would, in the defining function's locals and the module's globals,
    and, beyond Python, in the enclosing Configurable.
    """
    if not _has_forward(annotation):
        return annotation
    module = sys.modules.get(owner.__module__)
    module_names = vars(module) if module is not None else {}
    target = getattr(owner, "_target", None)
    names: dict[str, Any] = {}
    for scope in (owner, target):
        if isinstance(scope, type):
            names.update((k, v) for k, v in vars(scope).items() if k not in module_names)
            names.setdefault(scope.__name__, scope)
    names.update(captured)
    holder = types.SimpleNamespace(__annotations__={"field": annotation})
    hints = typing.get_type_hints(holder, dict(module_names), names, include_extras=True)
    return hints["field"]
