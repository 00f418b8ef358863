"""Children that a module class annotates, such as `student: CausalLM`: editors see them, and `setup` must add them."""

import functools
import types
from typing import Any, NamedTuple, Union, get_args, get_origin

from kanawa.config.field_types import annotation_text
from kanawa.config.schema import is_classvar, resolve_annotation
from kanawa.errors import ModuleError


class ChildType(NamedTuple):
    """What one annotation allows: classes, None, or any number of children `name[0]`, `name[1]`, …"""

    classes: tuple[type, ...]
    optional: bool
    repeated: bool
    text: str


def check_children(module: Any, base: type) -> None:
    """Raises ModuleError where `setup` left out a child that the class annotates, or added one of another class.

    `base` is the class of all modules. `terms: tuple[TokenLoss, ...]` declares children `terms[0]`, `terms[1]`, …,
    and the attribute `terms` becomes the tuple of them.
    """
    cls: type = type(module)
    for name, expected in child_types(cls, base).items():
        if expected.repeated:
            found = _numbered(module.children, name)
            setattr(module, name, tuple(found.values()))
        elif name in module.children:
            found = {name: module.children[name]}
        else:
            found = {}
            _check_absence(module, name, expected)
        for label, child in found.items():
            if not isinstance(child, expected.classes):
                raise ModuleError(_message(module, name, expected, f"{label} is of class {type(child).__name__}"))


@functools.cache
def child_types(cls: type, base: type) -> dict[str, ChildType]:
    """Returns the annotated children of a module class, those of its bases included.

    An annotation that names something undefined, or that isn't about modules alone, declares no child, nor does one
    with a value.
    """
    found: dict[str, ChildType | None] = {}
    for owner in reversed(cls.__mro__):
        found |= dict.fromkeys(found.keys() & vars(owner).keys())
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            if not name.startswith("_") and not is_classvar(annotation):
                found[name] = None if name in vars(owner) else _child_type(annotation, owner, base)
    return {name: expected for name, expected in found.items() if expected is not None}


def _child_type(annotation: Any, owner: type, base: type) -> ChildType | None:
    try:
        resolved = resolve_annotation(annotation, owner, {})
    except NameError:
        return None
    repeated = get_origin(resolved) is tuple and get_args(resolved)[1:] == (Ellipsis,)
    inner = get_args(resolved)[0] if repeated else resolved
    members = get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)
    classes = tuple(each for each in members if each is not type(None))
    if not classes or not all(isinstance(each, type) and issubclass(each, base) for each in classes):
        return None
    return ChildType(classes, len(classes) < len(members), repeated, annotation_text(resolved))


def _numbered(children: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while (label := f"{name}[{len(found)}]") in children:
        found[label] = children[label]
    return found


def _check_absence(module: Any, name: str, expected: ChildType) -> None:
    if name not in vars(module):
        hint = f"setup() added no child of that name; call self.add_child({name!r}, …)"
    elif not expected.optional:
        hint = f"its config is None; write `{name}: {expected.text} | None` if it may be absent"
    else:
        return
    raise ModuleError(_message(module, name, expected, hint))


def _message(module: Any, name: str, expected: ChildType, found: str) -> str:
    return f"{module.path}: {type(module).__name__} declares `{name}: {expected.text}`, but {found}"
