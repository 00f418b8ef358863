"""A folder of derived data that may be lost at any time: written atomically, verified when read.

An entry is one file: a header line with the sha256 of the payload, then the payload. The key of an
entry names everything it was derived from, so an entry never has to be invalidated.
"""

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kanawa.local_path import cache_folder

_logger = logging.getLogger(__name__)
_MAGIC = b"kanawa-cache-1 "

T = TypeVar("T")


def cache_key(*parts: str) -> str:
    """Returns a hex key that depends on every part."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cached(kind: str, key: str, build: Callable[[], bytes], parse: Callable[[bytes], T]) -> T:
    """Returns `parse` of the entry `kind/key`, building and storing it when absent or damaged.

    A folder that can't be written costs a warning and the time to build again, never the run.
    """
    path = cache_folder() / kind / key
    payload = _read_entry(path)
    if payload is not None:
        try:
            return parse(payload)
        except (ValueError, KeyError, TypeError) as error:
            _logger.warning("cache entry %s doesn't parse (%s); building it again", path, error)
    payload = build()
    try:
        _write(path, payload)
    except OSError as error:
        _logger.warning("can't write cache entry %s (%s); set KANAWA_CACHE to a writable folder", path, error)
    return parse(payload)


def _read_entry(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _logger.warning("can't read cache entry %s (%s); building it again", path, error)
        return None
    header, _, payload = content.partition(b"\n")
    if header != _header(payload):
        _logger.warning("cache entry %s is damaged; building it again", path)
        return None
    return payload


def _write(path: Path, payload: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename replaces a file at once only within one file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(payload) + b"\n")
            file.write(payload)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _header(payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode()
