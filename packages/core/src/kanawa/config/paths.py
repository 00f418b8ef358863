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

from kanawa.errors import ConfigError

Key = str | int

_NAME = r"[^\W\d][\w\-]*"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_KEY = rf"[0-9]{{1,9}}|{_STRING}|{_NAME}"
_SUBSCRIPT = re.compile(rf"\[({_KEY}|\*)\]")
_PATH_SEGMENT = re.compile(rf"((?:{_NAME})?)((?:\[(?:{_KEY})\])*)")
_GLOB_SEGMENT = re.compile(rf"([\w\-*]*)((?:\[(?:{_KEY}|\*)\])*)")


class PathError(ConfigError):
    """A path or glob can't be read, or leads nowhere."""


def parse_path(path: str) -> tuple[Key, ...]:
    """Reads a path into its keys; the empty path is the root."""
    keys: list[Key] = []
    for name, subscripts in _segments(path, _PATH_SEGMENT):
        keys += [name] if name else []
        keys += map(_key, subscripts)
    return tuple(keys)


def join_path(keys: Iterable[Key]) -> str:
    """Writes keys as a path that `parse_path` reads back to the same keys."""
    text = ""
    for key in keys:
        if isinstance(key, str) and re.fullmatch(_NAME, key):
            text += f".{key}" if text else key
        else:
            text += _subscript(key)
    return text


def sort_key(keys: Iterable[Key]) -> tuple[tuple[bool, int, str], ...]:
    """Orders paths with positions as numbers, before names."""
    return tuple((False, k, "") if isinstance(k, int) else (True, 0, k) for k in keys)


def match_path(glob: str, path: str | tuple[Key, ...]) -> bool:
    """Returns whether the glob matches the whole path."""
    text = path if isinstance(path, str) else join_path(path)
    return _pattern(glob).fullmatch(_separated(text)) is not None


@lru_cache(maxsize=4096)
def _separated(path: str) -> str:
    """Returns a path with a NUL behind each segment, which no segment holds; keys in it are written one way."""
    segments = _segments(path, _PATH_SEGMENT)
    return "".join(name + "".join(_subscript(_key(s)) for s in subscripts) + "\0" for name, subscripts in segments)


@lru_cache(maxsize=512)
def _pattern(glob: str) -> re.Pattern[str]:
    pattern = ""
    for name, subscripts in _segments(glob, _GLOB_SEGMENT):
        if "**" in name and (name != "**" or subscripts):
            raise _unreadable(glob, glob.index("**"), "'**' to stand alone between dots")
        if name in ("*", "**") and not subscripts:
            pattern += r"[^\0]+\0" if name == "*" else r"(?:[^\0]+\0)*"
            continue
        pattern += r"[\w\-]*".join(map(re.escape, name.split("*")))
        pattern += (
            "".join(rf"\[(?:{_KEY})\]" if s == "*" else re.escape(_subscript(_key(s))) for s in subscripts) + r"\0"
        )
    return re.compile(pattern)


def _segments(text: str, pattern: re.Pattern[str]) -> list[tuple[str, list[str]]]:
    """Returns the name and the subscripts of each dotted segment; raises PathError."""
    segments: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(text) or text.endswith("."):
        found = pattern.match(text, at)
        if found is None or not (found[1] or (found[2] and not segments)):
            raise _unreadable(text, at, "a name")
        segments.append((found[1], _SUBSCRIPT.findall(found[2])))
        if found.end() == len(text):
            break
        if text[found.end()] != ".":
            raise _unreadable(text, found.end(), "'.', or an index or a quoted key in brackets,")
        at = found.end() + 1
    return segments


def _key(subscript: str) -> Key:
    key: Key = json.loads(subscript) if subscript.startswith('"') else subscript
    return int(subscript) if subscript.isdecimal() else key


def _subscript(key: Key) -> str:
    return f"[{json.dumps(key, ensure_ascii=False)}]"


def _unreadable(text: str, at: int, expected: str) -> PathError:
    there = repr(text[at : at + 8]) if at < len(text) else "the end"
    return PathError(
        f"can't read path {text!r}: expected {expected} at character {at + 1}, found {there}; "
        'paths look like a.b[0].c or a["any key"]'
    )
