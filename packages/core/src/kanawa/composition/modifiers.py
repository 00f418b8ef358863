"""Modifiers by name: `moe:num_experts=8,top_k=2` becomes a configured rewrite, applied under its own origin."""

from collections.abc import Mapping
from typing import Any

from kanawa.composition.blame import blamed
from kanawa.config import Config, Modifier, apply_override, origin
from kanawa.errors import ConfigError, KanawaError
from kanawa.plugins import component
from kanawa.plugins.fault import named_after


def parse_modifier(text: str) -> tuple[str, dict[str, str]]:
    """Returns (name, {field: text}) of `NAME[:key=value,…]`; commas inside brackets don't separate.

    NAME may be `distribution:name`, so the fields start after the last colon before the first `=`.
    """
    head, equals, _ = text.partition("=")
    # Without '=' there are no fields, so any colon is the distribution's.
    name = head.rpartition(":")[0] if equals else text
    rest = text[len(name) :].removeprefix(":")
    fields: dict[str, str] = {}
    for part in _split(rest):
        key, equals, value = part.partition("=")
        if not name or not key or not equals:
            message = f"modifier {text!r}: expected NAME or NAME:key=value,key=value; found {part!r}"
            raise ConfigError(message)
        fields[key.strip()] = value
    return name, fields


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p for p in [*parts, text[start:]] if p]


def configured(name: str, values: Mapping[str, Any], asker: str = "") -> Modifier:
    """Returns the catalogued modifier with its fields set; text values are parsed by the field's type."""
    kind = component("modifiers", name, asker)
    if not (isinstance(kind, type) and issubclass(kind, Modifier)):
        message = f"modifier {name!r} is {kind!r}, which is not a subclass of kanawa.Modifier"
        raise ConfigError(message)
    cfg = kind.Config()
    try:
        for field, value in values.items():
            if isinstance(value, str):
                apply_override(cfg, f"{field}={value}")
            else:
                cfg.set(**{field: value})
        with blamed(cfg, f"modifier {name!r}"):
            modifier: Modifier = cfg.build()
            return modifier
    except KanawaError as error:
        error.add_note(f"in the arguments of modifier {name!r}; `kanawa list modifiers` shows all")
        raise


def apply_modifier(
    cfg: Config, name: str, values: Mapping[str, Any], stage: str, detail: str = "", asker: str = ""
) -> Config:
    """Returns `cfg` rewritten by the named modifier; errors say which modifier was at work.

    `detail` says of origins what more there is to say than the name; `asker` is whose data has the name, if no user
    wrote it.
    """
    try:
        modifier = configured(name, values, asker)
        with origin(stage, ", ".join(filter(None, (name, detail)))), blamed(modifier.config, f"modifier {name!r}"):
            rewritten = modifier(cfg)
    except KanawaError as error:
        error.add_note(f"while applying modifier {name!r}")
        raise
    if not isinstance(rewritten, Config):
        message = f"modifier {name!r} returned {type(rewritten).__name__}, expected the rewritten config"
        raise ConfigError(message + named_after(type(modifier)))
    return rewritten
