"""Digests of a config: what the experiment is, and where and how it runs."""

import hashlib
import json
from typing import Any, Literal

from kanawa.config.json_form import Encoding, encode_value
from kanawa.config.paths import Key, join_path
from kanawa.config.record import Config
from kanawa.config.values import Node, holds_config, items_of
from kanawa.errors import ConfigError, did_you_mean

Part = Literal["experiment", "placement", "all"]


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
