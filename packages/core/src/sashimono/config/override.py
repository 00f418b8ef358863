"""Overrides from the command line: `model.layers[0].norm.eps=1e-5`, read by the field's type."""

import ast
import json
from collections.abc import Iterator
from typing import Any

from sashimono.config.admit import FieldTypeError
from sashimono.config.call_config import config_for
from sashimono.config.callables import CallableNameError, resolve_callable
from sashimono.config.json_load import decode_value
from sashimono.config.record import Config
from sashimono.config.schema import Field
from sashimono.config.sentinels import UNSET_BY_NAME
from sashimono.config.traverse import owner_of
from sashimono.errors import ConfigError, UnknownNameError, did_you_mean


class OverrideError(ConfigError):
    """An override can't be read, leads nowhere, or has a value its field doesn't take."""


def apply_override(cfg: Config, text: str) -> str:
    """Sets one value in place from `path=value` and returns the path.

    The value is read as JSON or as a Python literal, else taken as text: whichever the field's type
    admits first. Enum members go by name; callables, classes and configs by catalog name or
    `module:attribute`. Raises PathError or OverrideError.
    """
    path, value_text = _split(text)
    node, name, _, _ = owner_of(cfg, path)
    field = node.fields()[name]
    refusal: FieldTypeError | None = None
    for candidate in _candidates(value_text, field):
        try:
            cfg.set_path(path, candidate)
            return path
        except FieldTypeError as error:
            refusal = refusal or error
    raise _refused(path, value_text, field) from refusal


def _split(text: str) -> tuple[str, str]:
    """Splits at the first `=` outside brackets, since a quoted key may hold one."""
    depth, quoted = 0, False
    for i, character in enumerate(text):
        if character == '"' and depth and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character in "[]":
            depth += 1 if character == "[" else -1
        elif character == "=" and depth == 0:
            return text[:i].strip(), text[i + 1 :].strip()
    message = f"can't read the override {text!r}: write path=value, for example model.norm.eps=1e-5"
    raise OverrideError(message)


def _candidates(text: str, field: Field) -> Iterator[Any]:
    """Yields what the text may mean, most literal first."""
    if text in UNSET_BY_NAME:
        yield UNSET_BY_NAME[text]
    try:
        yield decode_value(json.loads(text))
    except ValueError:
        pass
    try:
        yield ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError):
        pass
    for cls in field.type.enums():
        member = text.rpartition(".")[2]
        if member in cls.__members__:
            yield cls[member]
    if text.lstrip("+-").lower() in ("inf", "nan", "infinity"):
        yield float(text)
    yield text
    yield from _named(text, field)


def _named(text: str, field: Field) -> Iterator[Any]:
    """Yields the object behind a name, for fields that may hold one; imports nothing otherwise."""
    if not field.type.mentions("callable", "class", "config", "any"):
        return
    try:
        found = resolve_callable(text)
    except (CallableNameError, UnknownNameError) as error:
        near = f": {error}" if ":" in text or "connected" not in str(error) else ""
        if near:
            message = f"{field.label}: expected {field.type.text}, got {text!r}{near}"
            raise OverrideError(message) from error
        return
    yield found
    if isinstance(found, type) and issubclass(found, Config):
        yield found()
    elif callable(found):
        yield config_for(found)


def _refused(path: str, text: str, field: Field) -> OverrideError:
    near = ""
    names = [n for cls in field.type.enums() for n in cls.__members__]
    literals = [str(a) for a in getattr(field.type.annotation, "__args__", ()) if _is_atom(a)]
    if names or literals:
        near = did_you_mean(text, names + literals)
    return OverrideError(f"{path}={text}: expected {field.type.text} ({field.label}){near}")


def _is_atom(value: Any) -> bool:
    return isinstance(value, str | int | float)
