"""Modifiers that undo one another: each alone does what it says, and in a row the last one silently wins."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kanawa.config import Config
from kanawa.config.origin import Origin
from kanawa.config.paths import PathError, join_path, parse_path
from kanawa.config.value_text import value_text

_STAGE = "modifier"
_SHOWN = 3


class _Claim(NamedTuple):
    """A value that a modifier of the command line has set."""

    path: str
    name: str
    value: Any
    origin: Origin


def undone(before: Config, after: Config, modifier: str) -> list[str]:
    """Returns one line for each earlier modifier whose values `modifier` replaced, with paths and values.

    What was only wrapped, or moved with the node it is in, still counts as there.
    """
    here = {(claim.name, claim.origin) for claim in _claims(after)}
    lost: dict[str, list[str]] = {}
    tops: list[str] = []
    # From the top down, so that a replaced node is reported once, not once per field inside.
    for claim in _claims(before):
        if any(_is_inside(claim.path, top) for top in tops) or (claim.name, claim.origin) in here:
            continue
        now = _value_at(after, claim.path)
        if now == claim.value or _is_wrapped(claim.value, now) or _is_extended(claim.value, now):
            continue
        tops.append(claim.path)
        lost.setdefault(claim.origin.detail, []).append(f"{claim.path} ({_text(claim.value)} is now {_text(now)})")
    return [
        f"modifier {modifier!r} replaces what modifier {earlier!r} set: {', '.join(places[:_SHOWN])}"
        f"{f' and {len(places) - _SHOWN} more' if len(places) > _SHOWN else ''}; the last one wins"
        for earlier, places in lost.items()
    ]


def _claims(cfg: Config) -> Iterator[_Claim]:
    for path, node in cfg.walk():
        for name in node.fields():
            last = node.origin_history(name)[-1]
            if last.stage == _STAGE:
                yield _Claim(f"{path}.{name}" if path else name, name, getattr(node, name), last)


def _value_at(cfg: Config, path: str) -> Any:
    """Returns the value now at a path, or of the nearest thing above it that still is there."""
    keys = parse_path(path)
    while keys:
        try:
            return cfg.get(join_path(keys))
        except PathError:
            keys = keys[:-1]
    return cfg


def _is_wrapped(value: Any, now: Any) -> bool:
    """Whether a config's place was taken by one that holds a config of the same class."""
    return (
        isinstance(value, Config)
        and isinstance(now, Config)
        and any(type(node) is type(value) for _, node in now.walk())
    )


def _is_extended(value: Any, now: Any) -> bool:
    """Whether a tuple's elements are all there in their order, with others before, between or after them."""
    if not isinstance(value, tuple) or not isinstance(now, tuple):
        return False
    rest = iter(now)
    return all(any(element == other for other in rest) for element in value)


def _is_inside(path: str, top: str) -> bool:
    return path == top or path.startswith((f"{top}.", f"{top}["))


def _text(value: Any) -> str:
    text = type(value).__qualname__ if isinstance(value, Config) else value_text(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
