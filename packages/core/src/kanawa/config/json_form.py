"""Configs as JSON that loads back to an equal config, and digests of it.

A node is an object with "$type" (or "$call") and "$version"; what JSON has no word for is an object
with one "$" key: $callable, $enum, $tuple, $float, $unset, $dict.
"""

import enum
import hashlib
import json
import math
from typing import Any, Literal, NamedTuple

from kanawa.config.callables import public_name
from kanawa.config.field_types import Mismatch
from kanawa.config.paths import Key, join_path
from kanawa.config.record import Config
from kanawa.config.sentinels import Sentinel
from kanawa.config.traverse import walk_keys
from kanawa.config.values import ATOMS, Node, holds_config, items_of, same_value
from kanawa.errors import ConfigError, did_you_mean


class Encoding(NamedTuple):
    """What to write: schema versions, fields that only say where and how a run executes, INTRINSIC ones."""

    versions: bool = True
    placement: bool = True
    intrinsic: bool = True


_FULL = Encoding()
Part = Literal["experiment", "placement", "all"]


def to_json(cfg: Config, *, origins: bool = False) -> dict[str, Any]:
    """Returns the config as JSON data; with `origins`, who set each value is beside it.

    Raises CallableNameError for a callable without a public name.
    """
    data = _encode_node(cfg, _FULL)
    if origins:
        data["$origins"] = {
            join_path((*keys, name)): [list(made) for made in history]
            for keys, node in walk_keys(cfg)
            for name, history in node._origins.items()
        }
    return data


def encode_value(value: Any, encoding: Encoding = _FULL) -> Any:
    """Returns any config value as JSON data that carries its own types."""
    return _encode(value, encoding, bare_tuples=False)


def digest(cfg: Config, part: Part = "experiment") -> str:
    """Returns a sha256 over canonical JSON.

    "experiment" leaves out the fields in each class's PLACEMENT, "placement" takes only those with
    their paths, "all" takes everything; INTRINSIC fields count in "all" only. Schema versions and origins don't count.
    """
    if part == "experiment":
        content = encode_value(cfg, Encoding(versions=False, placement=False, intrinsic=False))
    elif part == "placement":
        content = _placement(cfg, ())
    elif part == "all":
        content = encode_value(cfg, Encoding(versions=False))
    else:
        message = f"no digest {part!r}{did_you_mean(part, ('experiment', 'placement', 'all'))}"
        raise ConfigError(message)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _placement(value: Any, at: tuple[Key, ...]) -> dict[str, Any]:
    # Keyed by path: a field that moves to another node must change the digest.
    placed: dict[str, Any] = {}
    if isinstance(value, Node):
        chosen = value._schema.placement  # type: ignore[attr-defined]
        for name, inner in vars(value).items():
            if name in chosen:
                placed[join_path((*at, name))] = encode_value(inner, Encoding(versions=False, intrinsic=False))
            elif name not in value._schema.intrinsic:  # type: ignore[attr-defined]
                placed.update(_placement(inner, (*at, name)))
    elif holds_config(value):
        for key, inner in items_of(value):
            placed.update(_placement(inner, (*at, key)))
    return placed


def _encode_node(node: Any, encoding: Encoding) -> dict[str, Any]:
    cls = type(node)
    data: dict[str, Any] = {}
    if node.callee is not None:
        data["$call"] = public_name(node.callee)
    else:
        data["$type"] = f"{cls.__module__}:{cls.__qualname__}"
        if encoding.versions:
            data["$version"] = cls.SCHEMA_VERSION
    for name, field in node.fields().items():
        value = vars(node)[name]
        if name in node._schema.placement and not encoding.placement:
            continue
        if name in node._schema.intrinsic and (not encoding.intrinsic or same_value(value, field.default)):
            continue
        data[name] = _encode_field(value, field, encoding)
    return data


def _encode_field(value: Any, field: Any, encoding: Encoding) -> Any:
    """Writes a tuple as a plain list where the field's type alone turns it back into one."""
    if not _holds_tuple(value):
        return _encode(value, encoding, bare_tuples=False)
    try:
        listed = _listed(value)
        recovers = same_value(field.type.admit(listed, False), value)
    except Mismatch:
        recovers = False
    return _encode(value, encoding, bare_tuples=recovers)


def _encode(value: Any, encoding: Encoding, bare_tuples: bool) -> Any:
    if type(value) is float and not math.isfinite(value):
        return {"$float": repr(value)}
    if type(value) in ATOMS:
        return value
    if isinstance(value, Node):
        return _encode_node(value, encoding)
    if isinstance(value, Sentinel):
        return {"$unset": repr(value)}
    if isinstance(value, enum.Enum):
        cls = type(value)
        return {"$enum": f"{cls.__module__}:{cls.__qualname__}", "member": value.name}
    if isinstance(value, list | tuple):
        items = [_encode(v, encoding, bare_tuples) for v in value]
        return {"$tuple": items} if isinstance(value, tuple) and not bare_tuples else items
    if isinstance(value, dict):
        coded = {k: _encode(v, encoding, bare_tuples) for k, v in value.items()}
        return {"$dict": coded} if any(k.startswith("$") for k in coded) else coded
    return {"$callable": public_name(value)}


def _holds_tuple(value: Any) -> bool:
    if isinstance(value, tuple):
        return True
    return isinstance(value, list | dict) and any(_holds_tuple(v) for _, v in items_of(value))


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(v) for v in value]
    if isinstance(value, dict):
        return {k: _listed(v) for k, v in value.items()}
    return value
