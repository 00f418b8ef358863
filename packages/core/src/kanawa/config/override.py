"""Overrides from the command line: `model.layers[0].norm.eps=1e-5`, read by the field's type."""

import ast
import functools
import inspect
import itertools
import json
import re
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from kanawa.config.call_config import config_for
from kanawa.config.callables import CallableNameError, resolve_all
from kanawa.config.field_types import FieldTypeError, parts_of
from kanawa.config.json_load import decode_value, refuse_depth
from kanawa.config.record import Config
from kanawa.config.schema import Field
from kanawa.config.sentinels import UNSET_BY_NAME
from kanawa.config.traverse import owner_of
from kanawa.errors import ConfigError, UnknownNameError, did_you_mean

_OVERRIDE = re.compile(r'((?:[^\[\]=]|\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\])*)=(.*)', re.DOTALL)


class OverrideError(ConfigError):
    """An override can't be read, leads nowhere, or has a value its field doesn't take."""


def apply_override(cfg: Config, text: str) -> str:
    """Sets one value in place from `path=value` and returns the path.

    The value is read as JSON or as a Python literal, else taken as text: whichever the field's type
    admits first. Enum members go by name; callables, classes and configs by catalog name or
    `module:attribute`, inside a list, tuple or dict too: `execution.strategies=["ulysses","fsdp"]`.
    Raises PathError or OverrideError.
    """
    path, value_text = _split(text)
    node, name, _, _ = owner_of(cfg, path)
    field = node.fields()[name]
    refusal: FieldTypeError | None = None
    for candidate in _candidates(path, value_text, field):
        try:
            cfg.set_path(path, candidate)
            return path
        except FieldTypeError as error:
            refusal = refusal or error
    raise _refused(path, value_text, field) from refusal


def _split(text: str) -> tuple[str, str]:
    """Splits at the first `=` outside brackets, since a quoted key may hold one."""
    found = _OVERRIDE.fullmatch(text)
    if found is None:
        message = f"can't read the override {text!r}: write path=value, for example model.norm.eps=1e-5"
        raise OverrideError(message)
    return found[1].strip(), found[2].strip()


def _candidates(path: str, text: str, field: Field) -> Iterator[Any]:
    """Yields what the text may mean, most literal first."""
    if text in UNSET_BY_NAME:
        yield UNSET_BY_NAME[text]
    yield from _parsed(text)
    for cls in field.type.enums():
        member = text.rpartition(".")[2]
        if member in cls.__members__:
            yield cls[member]
    if text.lstrip("+-").lower() in ("inf", "nan", "infinity"):
        yield float(text)
    yield text
    if bare := _bare_names(text):
        yield bare
    yield from _named(path, text, field)


def _parsed(text: str) -> Iterator[Any]:
    # Read before it is yielded: what goes wrong with the value afterwards is no sign of how the text is meant.
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        refuse_depth(data)
        yield decode_value(data)
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return
    refuse_depth(literal)
    yield literal


def _named(path: str, text: str, field: Field) -> Iterator[Any]:
    """Yields what the names in a value stand for, where the field may hold such; imports nothing otherwise."""
    if not field.type.mentions("callable", "class", "config", "any"):
        return
    holders = [value for value in (*_parsed(text), _bare_names(text)) if isinstance(value, list | tuple | dict)]
    try:
        if holders:
            yield from _with_names(holders[0], field)
        else:
            for meaning in resolve_all(text, field.type.named):
                yield from _uses_of(meaning, field)
    except (CallableNameError, UnknownNameError) as error:
        message = f"{path}={text}: expected {field.type.text} ({field.label}); {error}"
        raise OverrideError(message) from error


def _bare_names(text: str) -> list[str] | None:
    """Returns the names in `[ulysses, fsdp]`, which a shell leaves of a list without inner quotes."""
    inside = text.strip().removeprefix("[").removesuffix("]")
    names = [name.strip() for name in inside.split(",")]
    bracketed = len(inside) == len(text.strip()) - 2
    return names if bracketed and all(re.fullmatch(r"[\w.:-]+", name) for name in names) else None


def _uses_of(meaning: Any, field: Field) -> Iterator[Any]:
    """Yields an object as it is, then the config that it is, returns or is built by."""
    yield meaning
    is_config = isinstance(meaning, type) and issubclass(meaning, Config)
    if is_config or (_is_recipe(meaning) and field.type.mentions("config")):
        yield meaning()
    elif callable(meaning):
        yield config_for(meaning)


def _with_names(value: Any, field: Field) -> Iterator[Any]:
    """Yields a container with the texts in it replaced by what they name, in every way they may be meant."""
    if isinstance(value, str):
        for meaning in resolve_all(value, field.type.named):
            yield from _uses_of(meaning, field)
    elif isinstance(value, list | tuple):
        yield from itertools.product(*(_with_names(item, field) for item in value))
    elif isinstance(value, dict):
        for values in itertools.product(*(_with_names(item, field) for item in value.values())):
            yield dict(zip(value, values, strict=True))
    else:
        yield value


def _is_recipe(meant: Any) -> bool:
    """Returns whether a function needs no argument and says that it returns a config, as catalogued models do."""
    function = meant.func if isinstance(meant, functools.partial) else meant
    if not inspect.isfunction(function):
        return False
    if any(_is_required(parameter) for parameter in inspect.signature(meant).parameters.values()):
        return False
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):  # an annotation for type checkers alone
        return False
    return isinstance(returned, type) and issubclass(returned, Config)


def _is_required(parameter: inspect.Parameter) -> bool:
    is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_rest


def _refused(path: str, text: str, field: Field) -> OverrideError:
    near = ""
    names = [n for cls in field.type.enums() for n in cls.__members__]
    for part in parts_of(field.type.annotation):
        if get_origin(part) is Literal:
            names.extend(str(a) for a in get_args(part))
    if names:
        near = did_you_mean(text, names)
    return OverrideError(f"{path}={text}: expected {field.type.text} ({field.label}){near}")
