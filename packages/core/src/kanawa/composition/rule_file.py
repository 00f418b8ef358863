"""A user's own mesh rules, from the TOML file that the environment names: they win over all installed ones."""

import os
import pathlib
import tomllib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from kanawa.errors import ConfigError, did_you_mean
from kanawa.guarded_read import UnreadableFileError, guarded_bytes
from kanawa.local_path import local_path
from kanawa.plugins import MeshRule

VARIABLE = "KANAWA_MESH_RULES"
_MOST_BYTES = 2**20


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(value: Any) -> bool:
    return isinstance(value, dict) and all(type(size) is int and (size == -1 or size > 0) for size in value.values())


def _are(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(each, kind) for each in value)


_EXPECTED: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("name", "a text", lambda value: isinstance(value, str)),
    ("platform", "a platform's name", lambda value: isinstance(value, str)),
    ("devices", "a list of device names", _are(str)),
    *((name, "a whole number, at least 0", _is_count) for name in ("min_chips", "max_chips", "min_parameters")),
    ("max_parameters", "a whole number, at least 0", _is_count),
    ("slices", "'single' or 'multi'", lambda value: value in ("single", "multi")),
    ("mesh", "a table of axes to sizes, of which one may be -1", _are_sizes),
    ("dcn", "a table of axes to sizes, of which one may be -1", _are_sizes),
    ("modifiers", "a list of tables, each with a name", _are(dict)),
    ("priority", "a whole number", lambda value: type(value) is int),
)


def user_rules() -> list[MeshRule]:
    """Returns the rules of the file that KANAWA_MESH_RULES names, none where it is unset.

    Each `[[rule]]` table has the fields of MeshRule; `modifiers` is a list of tables with a `name` and arguments.
    Raises ConfigError naming file, rule and field.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return []
    path = local_path(named, f"{VARIABLE}=")
    try:
        tables = tomllib.loads(guarded_bytes(path, most=_MOST_BYTES).decode()).get("rule", [])
    except (OSError, ValueError, RecursionError, UnreadableFileError) as error:
        message = f"{VARIABLE}={named}: can't read mesh rules: {error}"
        raise ConfigError(message) from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        message = f"{VARIABLE}={named}: `rule` must be tables, one after another: [[rule]]"
        raise ConfigError(message)
    return [_rule(table, f"{path}: rule {number}") for number, table in enumerate(tables, 1)]


def _rule(table: dict[str, Any], where: str) -> MeshRule:
    names = [field.name for field in fields(MeshRule) if field.compare]
    for name in table:
        if name not in names:
            message = f"{where}: a mesh rule has no {name!r}{did_you_mean(name, names)}"
            raise ConfigError(message)
    values = {"name": f"user.{pathlib.Path(where.partition(':')[0]).stem}", **table}
    for name, expected, fits in _EXPECTED:
        if name in values and not fits(values[name]):
            message = f"{where}: {name} is {values[name]!r:.80}, expected {expected}"
            raise ConfigError(message)
    values["devices"] = tuple(values.get("devices", ()))
    arguments = [dict(modifier) for modifier in values.get("modifiers", ())]
    try:
        values["modifiers"] = tuple((modifier.pop("name"), modifier) for modifier in arguments)
        return MeshRule(**values)
    except (KeyError, TypeError, ValueError) as error:
        message = f"{where}: {error}; give at least platform and mesh, and each modifier a name"
        raise ConfigError(message) from error
