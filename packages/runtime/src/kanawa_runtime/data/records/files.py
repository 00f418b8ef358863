"""Records of a user's files: JSON Lines."""

from collections.abc import Iterator
from pathlib import Path

from kanawa.config import REQUIRED

from kanawa_runtime.data.records.record import Record, Records
from kanawa_runtime.data.text_files import json_lines, named_files


class RecordFiles(Records):
    """The records of files, by name and then in the order of the file."""

    class Config(Records.Config):
        #: Where the files lie says nothing about them: their content is pinned by the digest.
        PLACEMENT = ("root",)

        #: Globs, absolute or relative to `root`; `**` crosses folders, a folder means all below it. Each must match.
        files: tuple[str, ...] = REQUIRED
        #: Names are relative to this folder: moving it as a whole changes nothing.
        root: str = "."

    def read(self) -> Iterator[Record]:
        """Yields records named `path:line`; raises CorpusError that names a bad record's line."""
        for name, path in named_files(self.config.files, Path(self.config.root)):
            for number, fields in json_lines(path):
                yield Record(f"{name}:{number}", fields)
