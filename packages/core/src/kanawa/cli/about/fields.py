"""What a component can be configured with: the fields of its config, or the arguments of its function."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple


class FieldLine(NamedTuple):
    """A field or an argument: `default` is text, "" where a value is required, "from parent" where a parent sets it."""

    name: str
    type: str
    default: str

    def as_json(self) -> dict[str, Any]:
        """Returns the record that --json writes."""
        required = self.default == ""
        return {
            "name": self.name,
            "type": self.type,
            "default": None if required else self.default,
            "required": required,
        }


def field_lines(value: Any) -> list[FieldLine]:
    """Returns the fields of a Configurable, or the arguments of a function; nothing for other objects."""
    from kanawa.config import Configurable

    if isinstance(value, type) and issubclass(value, Configurable):
        hidden = value.Config._schema.intrinsic
        return [
            FieldLine(name, field.type.text, _default(field.default))
            for name, field in value.Config().fields().items()
            if name not in hidden
        ]
    if not inspect.isfunction(value):
        return []
    parameters = inspect.signature(value).parameters.values()
    return [FieldLine(p.name, _annotation(p), "" if p.default is p.empty else repr(p.default)) for p in parameters]


def _default(default: Any) -> str:
    from kanawa.config import FROM_PARENT, REQUIRED, Config
    from kanawa.config.value_text import value_text

    if default is REQUIRED or default is FROM_PARENT:
        return "" if default is REQUIRED else "from parent"
    if isinstance(default, Config) and default._target is not None:
        return default._target.__qualname__
    return value_text(default)


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", str(annotation))
