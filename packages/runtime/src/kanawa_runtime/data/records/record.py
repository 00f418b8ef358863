"""The contract of records: named objects with fields, in a fixed order."""

import abc
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kanawa.config import Configurable


class Record(NamedTuple):
    """One object of a file: `name` is `path:line` or `path#row`, relative to the root; the same on any machine."""

    name: str
    fields: Mapping[str, Any]


class Records(Configurable):
    """Records in a fixed order, read as they are needed."""

    class Config(Configurable.Config):
        pass

    @abc.abstractmethod
    def read(self) -> Iterator[Record]:
        """Yields every record; raises CorpusError that names the file and place of what can't be read."""

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the names and fields of all records."""
        hasher = hashlib.sha256()
        for name, fields in self.read():
            hasher.update(json.dumps([name, fields], sort_keys=True, default=str).encode() + b"\n")
        return hasher.hexdigest()
