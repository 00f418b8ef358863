"""Reading files of a folder from elsewhere: ordinary, inside the folder, and no longer than such a file is."""

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kanawa.errors import UsageError

#: How deep JSON of ours or of other libraries may go: real files go some 20 deep, and Python's stack ends near 300.
MOST_LEVELS = 100
#: A vocabulary of half a million merges has half as many; each takes some 70 bytes of memory at least.
MOST_VALUES = 4_000_000
#: Of a file's name on every file system in use.
MOST_NAME_BYTES = 255
_SCALARS = frozenset((int, float, str, bool, type(None)))
_DEEP = f"it nests lists and objects more than {MOST_LEVELS} deep, deeper than can be read"


class UnreadableFileError(UsageError):
    """A file is of a kind or size that isn't read, is outside its folder, or isn't the expected JSON."""


def stays_inside(directory: Path, file: Path) -> bool:
    """Returns whether a file, links followed, is in the directory: a stranger's folder may link anywhere.

    The hub's own cache keeps the files of `snapshots/REVISION` in `blobs` beside it, and counts as inside.
    """
    try:
        real, home = file.resolve(), directory.resolve()
    except (OSError, RuntimeError):  # links that go round in a circle
        return False
    if real.is_relative_to(home):
        return True
    return home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"


def check_readable(file: Path, home: Path | None = None) -> None:
    """Raises UnreadableFileError for what isn't an ordinary file, or is a link out of `home`; OSError without a file.

    A pipe or a device would be waited for, and never end.
    """
    if home is not None and not stays_inside(home, file):
        message = f"{file} is a link out of its folder, to {os.path.realpath(file)}; put the file itself there"
        raise UnreadableFileError(message)
    _check_kind(file, file.stat().st_mode)


def _check_kind(file: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        message = f"{file} is a {_kind(mode)}, expected an ordinary file; put the file itself there"
        raise UnreadableFileError(message)


@contextlib.contextmanager
def guarded_open(file: Path, home: Path | None = None) -> Iterator[BinaryIO]:
    """Opens a file of any length to be read; raises UnreadableFileError, or OSError where there is none."""
    check_readable(file, home)
    with open(file, "rb", opener=_open_at_once) as stream:
        # Checked again: the file may have been replaced.
        _check_kind(file, os.fstat(stream.fileno()).st_mode)
        yield stream


def guarded_bytes(file: Path, home: Path | None = None, *, most: int) -> bytes:
    """Returns the bytes of a file of at most `most`; raises UnreadableFileError, or OSError where there is none."""
    with guarded_open(file, home) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        message = f"{file} is more than {most:,} bytes, which no file of that name is; download it again"
        raise UnreadableFileError(message)
    return content


def guarded_json(file: Path, home: Path | None = None, *, most: int) -> Any:
    """Returns what a JSON file holds; raises UnreadableFileError, or OSError where there is none."""
    try:
        return parsed_json(guarded_bytes(file, home, most=most))
    except ValueError as error:
        message = f"{file} isn't JSON that can be read: {error}"
        raise UnreadableFileError(message) from error


def parsed_json(text: bytes | str, **options: Any) -> Any:
    """Returns what a JSON text holds, `options` as of json.loads; raises ValueError, also for what costs too much."""
    marks: Any = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    # Counted before anything is made of them: "[],[],…" takes thirty times its length in memory.
    if sum(text.count(mark) for mark in marks) > MOST_VALUES:
        message = f"it holds more than {MOST_VALUES:,} values"
        raise ValueError(message)
    try:
        content = json.loads(text, **options)
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    if is_deep(content):
        raise ValueError(_DEEP)
    return content


def is_deep(data: Any) -> bool:
    """Returns whether lists and objects lie too deep inside each other to be walked."""
    level: list[Any] = [data]
    for _ in range(MOST_LEVELS):
        held = [inside(value) for value in level]
        # Lists of numbers may be millions long: their types are seen in one pass.
        level = [item for items in held if not _SCALARS.issuperset(map(type, items)) for item in items]
        if not level:
            return False
    return True


def inside(data: Any) -> Iterable[Any]:
    """Returns what a list or an object holds; nothing of anything else."""
    return data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()


def plain_name(name: str) -> bool:
    """Returns whether a text is the name of a file that may lie in a folder, and no path out of it."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < length <= MOST_NAME_BYTES and name.isprintable() and name not in (".", "..") and Path(name).name == name


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file; doesn't block on a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
