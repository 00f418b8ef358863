"""Loading configs from JSON: renamed fields follow, versions that are too new are named."""

import enum
import sys
from typing import Any

from kanawa.config.call_config import call_config_class
from kanawa.config.callables import CallableNameError, resolve_callable
from kanawa.config.origin import Origin
from kanawa.config.paths import Key, join_path
from kanawa.config.record import Config
from kanawa.config.schema import Field, unknown_field
from kanawa.config.sentinels import UNSET_BY_NAME
from kanawa.config.value_text import found_text
from kanawa.config.values import same_value
from kanawa.errors import ConfigError, did_you_mean
from kanawa.guarded_read import MOST_LEVELS, inside, is_deep

Origins = dict[str, list[list[Any]]]
# An origin without its last part, the value, is of an early file.
_ORIGIN_PARTS = (len(Origin._fields) - 1, len(Origin._fields))
# What must be under a tag, before it is looked into.
_HELD = {"$tuple": list, "$dict": dict, "$callable": str, "$float": str, "$unset": str, "$enum": str}


class ConfigLoadError(ConfigError):
    """JSON data can't be read as a config of the installed classes."""


def from_json(data: dict[str, Any]) -> Config:
    """Returns the config that `to_json` wrote, with its origins if they were written.

    Fields renamed since then move to their new names, removed ones are left out, and fields added since then have
    their defaults.
    Raises ConfigLoadError with the path for an unknown class or field and for a newer version.
    """
    refuse_depth(data)
    loaded = decode_value(data, (), _origins(data) if isinstance(data, dict) else {})
    if not isinstance(loaded, Config):
        message = f'expected a config object with "$type" or "$call", got {data!r}'
        raise ConfigLoadError(message)
    return loaded


def refuse_depth(data: Any) -> None:
    """Raises ConfigLoadError for lists and dicts too deep inside each other to be walked."""
    if is_deep(data):
        message = f"lists and objects lie inside each other more than {MOST_LEVELS} deep, which no config does"
        raise ConfigLoadError(message)


def _origins(data: dict[str, Any]) -> Origins:
    """Returns who set what, as written; raises ConfigLoadError for anything else."""
    origins = data.get("$origins", {})
    made = [each for history in inside(origins) for each in (history if isinstance(history, list) else [None])]
    whole = all(isinstance(each, list) and len(each) in _ORIGIN_PARTS for each in made)
    if not isinstance(origins, dict) or not whole:
        message = '"$origins" can\'t be read: expected {path: [[stage, detail, file, line, value], ...]}; leave it out'
        raise ConfigLoadError(message)
    return origins


def decode_value(data: Any, at: tuple[Key, ...] = (), origins: Origins | None = None) -> Any:
    """Returns the value that `encode_value` wrote."""
    if isinstance(data, list):
        return [decode_value(v, (*at, i), origins) for i, v in enumerate(data)]
    if not isinstance(data, dict):
        return data
    if "$type" in data or "$call" in data:
        return _decode_node(data, at, origins or {})
    tag = next((k for k in data if k.startswith("$")), None)
    if tag is None:
        return {k: decode_value(v, (*at, k), origins) for k, v in data.items()}
    return _decode_tagged(tag, data, at, origins)


def _decode_tagged(tag: str, data: dict[str, Any], at: tuple[Key, ...], origins: Origins | None) -> Any:
    value = data[tag]
    if tag in _HELD and not isinstance(value, _HELD[tag]):
        expected = _HELD[tag].__name__
        message = f'{_place(at)}"{tag}" must hold a {expected}, got {found_text(value)}'
        raise ConfigLoadError(message)
    if tag == "$tuple":
        return tuple(decode_value(value, at, origins))
    if tag == "$dict":
        return {k: decode_value(v, (*at, k), origins) for k, v in value.items()}
    if tag == "$callable":
        return _resolve(value, at)
    if tag == "$float":
        if value not in ("inf", "-inf", "nan"):
            message = f'{_place(at)}"$float" must hold a number such as "inf", got {found_text(value)}'
            raise ConfigLoadError(message)
        return float(value)
    if tag == "$unset" and value in UNSET_BY_NAME:
        return UNSET_BY_NAME[value]
    if tag == "$enum":
        cls = _resolve(value, at, is_data=True)
        member = data.get("member")
        if not isinstance(cls, enum.EnumType):
            message = f"{_place(at)}{value!r} is not an Enum"
            raise ConfigLoadError(message)
        if not isinstance(member, str) or member not in cls.__members__:
            near = did_you_mean(str(member), cls.__members__)
            message = f"{_place(at)}{value} has no member {member!r}{near}"
            raise ConfigLoadError(message)
        return cls[member]
    message = f"{_place(at)}can't read {data!r}: it was written by a newer kanawa; upgrade it"
    raise ConfigLoadError(message)


def _decode_node(data: dict[str, Any], at: tuple[Key, ...], origins: Origins) -> Config:
    cls = _node_class(data, at)
    version = data.get("$version", cls.SCHEMA_VERSION)
    if type(version) is not int:
        message = f'{_place(at)}"$version" must hold an int, got {found_text(version)}'
        raise ConfigLoadError(message)
    if version > cls.SCHEMA_VERSION:
        package = cls.__module__.partition(".")[0]
        message = (
            f"{_place(at)}{cls.__module__}:{cls.__qualname__} was written as version {version}, "
            f"the installed {package} knows version {cls.SCHEMA_VERSION}: upgrade {package}"
        )
        raise ConfigLoadError(message)
    node = cls()
    fields = cls.fields()
    for written, coded in cls.upgrade(data).items():
        if written.startswith("$"):
            continue
        name = cls._schema.renamed.get(written, written)
        if name not in fields:
            message = unknown_field(cls, written, fields, join_path(at))
            raise ConfigLoadError(message)
        if name != written and name in data:
            message = f"{_place(at)}both {written!r} and its new name {name!r} are given"
            raise ConfigLoadError(message)
        value = decode_value(coded, (*at, written), origins)
        history = tuple(Origin(*made) for made in origins.get(join_path((*at, written)), ()))
        _store(node, fields[name], value, history, at)
    return node


def _store(node: Config, field: Field, value: Any, history: tuple[Origin, ...], at: tuple[Key, ...]) -> None:
    where = join_path((*at, field.name))
    admitted = field.admit(value, where)
    if history or same_value(admitted, field.default):
        node._store(field.name, admitted, history)
    else:
        node._assign({field.name: admitted}, where)


def _node_class(data: dict[str, Any], at: tuple[Key, ...]) -> type[Config]:
    tag = "$call" if "$call" in data else "$type"
    if not isinstance(data[tag], str):
        message = f'{_place(at)}"{tag}" must hold a "module:name", got {found_text(data[tag])}'
        raise ConfigLoadError(message)
    if tag == "$call":
        callee = _resolve(data["$call"], at)
        if not callable(callee):
            message = f"{_place(at)}{data['$call']!r} can't be called"
            raise ConfigLoadError(message)
        return call_config_class(callee)
    cls = _resolve(data["$type"], at, is_data=True)
    if not isinstance(cls, type) or not issubclass(cls, Config):
        message = f"{_place(at)}{data['$type']!r} is not a Config class"
        raise ConfigLoadError(message)
    return cls


def _resolve(name: str, at: tuple[Key, ...], *, is_data: bool = False) -> Any:
    """Returns what a name refers to; `is_data`: a config class or an Enum, for which no library need be imported."""
    # Python's own library has neither, and some of its modules act when they are imported.
    if is_data and name.partition(":")[0].partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        message = f"{_place(at)}{name!r} is not imported: Python's own library has no configs"
        raise ConfigLoadError(message)
    try:
        return resolve_callable(name)
    except CallableNameError as error:
        message = f"{_place(at)}{error}"
        raise ConfigLoadError(message) from error


def _place(at: tuple[Key, ...]) -> str:
    return f"{join_path(at)}: " if at else ""
