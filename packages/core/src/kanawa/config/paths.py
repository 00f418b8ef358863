"""Paths into a config tree, `model.layers[0].norm.eps`, and the glob that matches them.

A path is a tuple of keys: field names and dict keys are strings, positions are integers. In text, a
string that looks like a name is written `.name`, any other `["any text"]`, an integer `[3]`.
In a glob, `*` matches one dotted segment with its indices (`layer[0]` is one segment),
`layer[*]` for any index, `lay*` for any name that starts so, and `**` for any number of segments,
also none.
"""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kanawa.errors import ConfigError

Key = str | int

_NAME = re.compile(r"[^\W\d][\w\-]*")
_GLOB_NAME = re.compile(r"[\w\-*]+")
_INDEX = re.compile(r"[0-9]{1,9}")
_STRING = json.JSONDecoder()


class PathError(ConfigError):
    """A path or glob can't be read, or leads nowhere."""


class _Any(NamedTuple):
    """The `[*]` of a glob."""


_ANY = _Any()


class Segment(NamedTuple):
    """One dotted segment: a name and the subscripts after it."""

    name: str
    subscripts: tuple[Key | _Any, ...] = ()


def parse_path(path: str) -> tuple[Key, ...]:
    """Reads a path into its keys; the empty path is the root."""
    keys: list[Key] = []
    for segment in _segments(path, _NAME):
        if segment.name:
            keys.append(segment.name)
        keys.extend(s for s in segment.subscripts if not isinstance(s, _Any))
    return tuple(keys)


def join_path(keys: Iterable[Key]) -> str:
    """Writes keys as a path that `parse_path` reads back to the same keys."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _NAME.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += f"[{json.dumps(key, ensure_ascii=False)}]"
    return text


def sort_key(keys: Iterable[Key]) -> tuple[tuple[bool, int, str], ...]:
    """Orders paths with positions as numbers, before names."""
    return tuple((False, k, "") if isinstance(k, int) else (True, 0, k) for k in keys)


def match_path(glob: str, path: str | tuple[Key, ...]) -> bool:
    """Returns whether the glob matches the whole path."""
    text = path if isinstance(path, str) else join_path(path)
    return _match(_glob(glob), _path_segments(text))


@lru_cache(maxsize=512)
def _glob(glob: str) -> tuple[Segment, ...]:
    return tuple(_segments(glob, _GLOB_NAME))


@lru_cache(maxsize=4096)
def _path_segments(path: str) -> tuple[Segment, ...]:
    return tuple(_segments(path, _NAME))


def _match(glob: tuple[Segment, ...], path: tuple[Segment, ...]) -> bool:
    """Advances the set of glob positions reachable after each path segment."""
    # Sets of positions, not backtracking: '**.a.**.b.**' would else take exponential time on a deep tree.
    reachable = _skip_any_depth(glob, {0})
    for segment in path:
        following = set()
        for at in reachable:
            if at == len(glob):
                continue
            if glob[at].name == "**":
                following.add(at)
            elif _segment_matches(glob[at], segment):
                following.add(at + 1)
        reachable = _skip_any_depth(glob, following)
    return len(glob) in reachable


def _skip_any_depth(glob: tuple[Segment, ...], positions: set[int]) -> set[int]:
    reachable = set(positions)
    for at in sorted(positions):
        while at < len(glob) and glob[at].name == "**":
            at += 1
            reachable.add(at)
    return reachable


def _segment_matches(glob: Segment, segment: Segment) -> bool:
    if glob == ("*", ()):
        return True
    return (
        len(glob.subscripts) == len(segment.subscripts)
        and _name_pattern(glob.name).fullmatch(segment.name) is not None
        and all(g is _ANY or g == s for g, s in zip(glob.subscripts, segment.subscripts, strict=True))
    )


@lru_cache(maxsize=512)
def _name_pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in name.split("*")))


def _segments(text: str, name_pattern: re.Pattern[str]) -> list[Segment]:
    segments: list[Segment] = []
    at = 0
    while at < len(text):
        if segments:
            at = _expect(text, at, ".")
        name = name_pattern.match(text, at)
        if name is None and (segments or text[at] != "["):
            raise _unreadable(text, at, "a name")
        name_text = name.group() if name else ""
        subscripts, at = _subscripts(text, at + len(name_text), name_pattern)
        if "**" in name_text and (name_text != "**" or subscripts):
            raise _unreadable(text, at, "'**' to stand alone between dots")
        segments.append(Segment(name_text, subscripts))
    if text.endswith("."):
        raise _unreadable(text, at, "a name after the last dot")
    return segments


def _subscripts(text: str, at: int, name_pattern: re.Pattern[str]) -> tuple[tuple[Key | _Any, ...], int]:
    keys: list[Key | _Any] = []
    while at < len(text) and text[at] == "[":
        at += 1
        if (index := _INDEX.match(text, at)) is not None:
            keys.append(int(index.group()))
            at = index.end()
        elif text[at : at + 1] == '"':
            try:
                key, at = _STRING.raw_decode(text, at)
            except json.JSONDecodeError:
                raise _unreadable(text, at, "a closing quote") from None
            keys.append(key)
        elif text[at : at + 1] == "*" and name_pattern is _GLOB_NAME:
            keys.append(_ANY)
            at += 1
        elif (name := _NAME.match(text, at)) is not None:
            keys.append(name.group())
            at = name.end()
        else:
            raise _unreadable(text, at, "an index or a quoted key")
        at = _expect(text, at, "]")
    return tuple(keys), at


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise _unreadable(text, at, repr(character))
    return at + 1


def _unreadable(text: str, at: int, expected: str) -> PathError:
    there = repr(text[at : at + 8]) if at < len(text) else "the end"
    return PathError(
        f"can't read path {text!r}: expected {expected} at character {at + 1}, found {there}; "
        'paths look like a.b[0].c or a["any key"]'
    )
