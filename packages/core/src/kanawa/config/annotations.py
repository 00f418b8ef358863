"""Reading annotations late: they may name classes that are defined further down the module."""

import re
import sys
import types
import typing
from typing import Any, ClassVar, ForwardRef, get_args, get_origin

_CLASSVAR = re.compile(r"(\w+\.)*ClassVar\b")
_NAMES = re.compile(r"[^\W\d]\w*")


def is_classvar(annotation: Any) -> bool:
    """Returns whether an annotation, a string perhaps, declares a class variable."""
    if isinstance(annotation, str):
        return _CLASSVAR.match(annotation.strip()) is not None
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def function_locals(cls: type, frame: types.FrameType) -> dict[str, Any]:
    """Returns the local names that string annotations of a class defined in a function refer to."""
    if "<locals>" not in cls.__qualname__:
        return {}
    annotations = vars(cls).get("__annotations__", {}).values()
    wanted = {n for a in annotations if has_forward(a) for n in _NAMES.findall(str(a))}
    names: dict[str, Any] = {}
    at: types.FrameType | None = frame
    while at is not None and wanted and at.f_code.co_name != "<module>":
        for name in wanted & at.f_locals.keys():
            names.setdefault(name, at.f_locals[name])
        at = at.f_back
    return names


def has_forward(annotation: Any) -> bool:
    """Returns whether anything in the annotation is still a string to evaluate."""
    if isinstance(annotation, str | ForwardRef):
        return True
    if get_origin(annotation) is typing.Literal:
        return False
    return any(has_forward(a) for a in get_args(annotation))


def resolve_annotation(annotation: Any, owner: type, captured: dict[str, Any]) -> Any:
    """Evaluates an annotation written in `owner`; raises NameError while a name is not defined yet.

    Names are looked up as Python would, in the defining function's locals and the module's globals,
    and, beyond Python, in the enclosing Configurable.
    """
    if not has_forward(annotation):
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
