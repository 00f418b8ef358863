"""Bad rows and files: an error that says what and where, or skipped and counted, as a config says."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import Found
from kanawa_runtime.data.records.formats import read_rows, record_name

_logger = logging.getLogger(__name__)

OnBad = Literal["stop", "skip"]
#: Problems named in full in one read; the others are only counted.
_MOST_NAMED = 3


class Skipped:
    """Counts what one read left out, and names the first few."""

    def __init__(self, rows: int = 0, files: int = 0, first: list[str] | None = None) -> None:
        self.rows, self.files = rows, files
        self.first: list[str] = first or []

    def add(self, message: str, *, whole_file: bool = False) -> None:
        """Counts a row, or what is left of a file."""
        if whole_file:
            self.files += 1
        else:
            self.rows += 1
        if len(self.first) < _MOST_NAMED:
            self.first.append(message)

    def show(self, data: str) -> None:
        """Logs the counts and the first problems, if there are any."""
        if self.rows or self.files:
            files = f" and the rest of {self.files} files" if self.files else ""
            _logger.warning("%s: skipped %d bad rows%s; the first: %s", data, self.rows, files, "; ".join(self.first))


def usable_records(
    files: list[Found],
    on_bad: OnBad,
    skipped: Skipped,
    *,
    check: Callable[[dict[str, Any]], str] | None = None,
    columns: list[str] | None = None,
    suffix: str | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, fields) of every good row of files; `check` returns what is wrong with a row's fields, or "".

    Raises CorpusError for a bad one, or counts it in `skipped`.
    """
    for file in files:
        try:
            for number, fields, unreadable in read_rows(file.address, columns, suffix):
                problem = unreadable or ("" if check is None else check(fields))
                if not problem:
                    yield record_name(file.name, number), fields
                    continue
                message = f"{record_name(file.address, number)}: {problem}"
                if on_bad == "stop":
                    raise CorpusError(message)
                skipped.add(message)
        except CorpusError as error:
            if on_bad == "stop":
                raise
            skipped.add(str(error), whole_file=True)
