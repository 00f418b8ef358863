"""Records of a user's files, in any format that `read_rows` knows."""

import functools
from collections.abc import Iterator

from kanawa.config import REQUIRED

from kanawa_runtime.data.records.addresses import Found
from kanawa_runtime.data.records.listing import found_files
from kanawa_runtime.data.records.record import Record, Records
from kanawa_runtime.data.records.usable import OnBad, Skipped, usable_records
from kanawa_runtime.data.scans import Fingerprint, fingerprint_of


class RecordFiles(Records):
    """The records of files, by name and then in the order of the file.

    JSON Lines, CSV, TSV, Parquet, Arrow and ArrayRecord by suffix, `.gz` and `.zst` of those with lines, and folders
    that Hugging Face `datasets` saved.
    """

    class Config(Records.Config):
        #: Where the files lie says nothing about them: their content is pinned by the digest.
        PLACEMENT = ("root",)

        #: Globs, absolute or relative to `root`; `**` crosses folders, a folder means all below it. Each must match.
        #: Addresses such as s3://bucket/**/*.jsonl are read through fsspec.
        files: tuple[str, ...] = REQUIRED
        #: Names are relative to this folder or address: moving it as a whole changes nothing.
        root: str = "."
        #: Whether a row that can't be read is an error, or left out and counted.
        on_bad: OnBad = "stop"
        #: The split to read of a folder that Hugging Face `datasets` saved with several.
        dataset_split: str = "train"

    @functools.cached_property
    def _found(self) -> list[Found]:
        return found_files(self.config.files, self.config.root, self.config.dataset_split)

    def read(self) -> Iterator[Record]:
        """Yields records named `path:line` or `path#row`; raises CorpusError that names a bad record's place."""
        self.skipped = Skipped()
        for name, fields in usable_records(self._found, self.config.on_bad, self.skipped):
            yield Record(name, fields)

    def fingerprint(self) -> Fingerprint | None:
        """Returns the files' names, sizes and times."""
        return fingerprint_of(self._found) if type(self) is RecordFiles else None

    def describe(self) -> str:
        """Returns the patterns."""
        return f"the records of {', '.join(self.config.files)}"
