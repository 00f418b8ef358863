"""The cache of what is derived from data: tokenizers, encoded examples, what a reading of files found.

It may be lost at any time. The key of an entry names everything it was derived from, so an entry never has to be
invalidated.
"""

import hashlib
import logging
from collections.abc import Callable
from typing import TypeVar

from kanawa.local_path import cache_folder

from kanawa_runtime.compile_cache import CheckedFiles

_logger = logging.getLogger(__name__)

T = TypeVar("T")


def cache_key(*parts: str) -> str:
    """Returns a hex key that depends on every part."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cached(kind: str, key: str, build: Callable[[], bytes], parse: Callable[[bytes], T]) -> T:
    """Returns `parse` of the entry `kind/key`, building and storing it when absent or damaged.

    A folder that can't be written costs a warning and the time to build again, never the run.
    """
    files = CheckedFiles(cache_folder() / kind)
    payload = files.get(key)
    if payload is not None:
        try:
            return parse(payload)
        except (ValueError, KeyError, TypeError) as error:
            _logger.warning("cache entry %s/%s doesn't parse (%s); building it again", kind, key, error)
    payload = build()
    files.put(key, payload)
    return parse(payload)
