"""A user's own mesh rules, from the TOML file that the environment names: they win over all installed ones."""

import os
import pathlib
import tomllib
from dataclasses import fields
from typing import Any

from kanawa.errors import ConfigError, did_you_mean
from kanawa.plugins import MeshRule

VARIABLE = "KANAWA_MESH_RULES"


def user_rules() -> list[MeshRule]:
    """Returns the rules of the file that KANAWA_MESH_RULES names, none where it is unset.

    Each `[[rule]]` table has the fields of MeshRule; `modifiers` is a list of tables with a `name` and arguments.
    Raises ConfigError naming file, rule and field.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return []
    path = pathlib.Path(named)
    try:
        tables = tomllib.loads(path.read_text()).get("rule", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        message = f"{VARIABLE}={named}: can't read mesh rules: {error}"
        raise ConfigError(message) from error
    return [_rule(table, f"{path}: rule {number}") for number, table in enumerate(tables, 1)]


def _rule(table: dict[str, Any], where: str) -> MeshRule:
    names = [field.name for field in fields(MeshRule)]
    for name in table:
        if name not in names:
            message = f"{where}: a mesh rule has no {name!r}{did_you_mean(name, names)}"
            raise ConfigError(message)
    values = {"name": f"user.{pathlib.Path(where.partition(':')[0]).stem}", **table}
    values["devices"] = tuple(values.get("devices", ()))
    arguments = [dict(modifier) for modifier in values.get("modifiers", ())]
    try:
        values["modifiers"] = tuple((modifier.pop("name"), modifier) for modifier in arguments)
        return MeshRule(**values)
    except (KeyError, TypeError, ValueError) as error:
        message = f"{where}: {error}; give at least platform and mesh, and each modifier a name"
        raise ConfigError(message) from error
