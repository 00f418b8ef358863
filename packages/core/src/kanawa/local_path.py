"""Paths are local: an address of a bucket is refused before a folder of that name is made."""

import os
import re
import tempfile
from pathlib import Path

from kanawa.errors import UsageError

#: Two letters at least, for C:/ is a drive; one slash will do, since `Path` makes one of two.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)


#: Of a name on every file system in use, and of a whole path to Linux.
_MOST_NAME_BYTES, _MOST_PATH_BYTES = 255, 4095


def local_path(text: str | Path, what: str = "") -> Path:
    """Returns the path with `~` expanded. `what` is how a person gave it, such as "--run".

    Raises UsageError for an address such as s3://bucket/run, which as a path would be a folder called "s3:", and for a
    text that no file system takes as a path.
    """
    address = _ADDRESS.match(str(text))
    if address is None:
        return _usable(Path(text), what)
    scheme, rest = address["scheme"], address["rest"]
    asked = f"{what} {scheme}://{rest}".strip()
    if scheme.lower() == "file":
        message = f"{asked} is an address; give the path itself: /{rest}"
        raise UsageError(message)
    message = (
        f"{asked} is an address; expected a local file or folder. "
        "Mount the storage and give the folder that it appears as, or copy the files"
    )
    raise UsageError(message)


def _usable(path: Path, what: str) -> Path:
    """Returns the path with `~` expanded; raises UsageError for what no file system takes."""
    try:
        path = path.expanduser()
        coded = os.fsencode(path)
    except RuntimeError as error:
        message = f"{what} {path}: there is no home folder to put in place of ~; give the whole path".strip()
        raise UsageError(message) from error
    except UnicodeEncodeError as error:
        message = f"{what} {str(path)!r} can't be the name of a file: {error.reason}; give another".strip()
        raise UsageError(message) from error
    if b"\0" in coded:
        message = f"{what} {str(path)[:80]!r} can't be the name of a file: it has a NUL character; give another".strip()
        raise UsageError(message)
    if len(coded) > _MOST_PATH_BYTES or any(len(os.fsencode(part)) > _MOST_NAME_BYTES for part in path.parts):
        message = (
            f"{what} {str(path)[:80]!r}… is too long for a path: a name has at most {_MOST_NAME_BYTES} bytes, a path "
            f"{_MOST_PATH_BYTES}"
        ).strip()
        raise UsageError(message)
    return path


def cache_folder() -> Path:
    """Returns where caches live: KANAWA_CACHE, else ~/.cache/kanawa; without a home, a folder for temporary files."""
    chosen = os.environ.get("KANAWA_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path.home() / ".cache" / "kanawa"
    except RuntimeError:  # a container's user without HOME and without an account
        return Path(tempfile.gettempdir()) / f"kanawa-{os.getuid()}"
