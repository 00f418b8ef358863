"""The format of a file by its suffix, and its rows, streamed."""

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import opened, readable, suffix_of
from kanawa_runtime.data.records.array_record import array_record_rows
from kanawa_runtime.data.records.columnar import arrow_rows, parquet_rows
from kanawa_runtime.data.records.csv_table import csv_rows
from kanawa_runtime.data.records.json_lines import json_rows
from kanawa_runtime.data.records.rows import Row

Reader = Callable[[str, Sequence[str] | None], Iterator[Row]]


def _of_stream(rows: Callable[[BinaryIO, str], Iterator[Row]]) -> Reader:
    def read(address: str, columns: Sequence[str] | None) -> Iterator[Row]:
        del columns  # Checked by the row: a line of JSON has fields of its own.
        with opened(address) as stream:
            yield from rows(stream, address)

    return read


def _csv(delimiter: str) -> Reader:
    return _of_stream(lambda stream, address: csv_rows(stream, address, delimiter))


def _array_record(address: str, columns: Sequence[str] | None) -> Iterator[Row]:
    del columns
    return array_record_rows(address)


JSON_LINES = (".jsonl", ".ndjson")
_READERS: dict[str, Reader] = {
    **dict.fromkeys(JSON_LINES, _of_stream(json_rows)),
    ".csv": _csv(","),
    ".tsv": _csv("\t"),
    ".parquet": parquet_rows,
    **dict.fromkeys((".arrow", ".feather"), arrow_rows),
    **dict.fromkeys((".array_record", ".arrayrecord"), _array_record),
}
#: Suffixes of files of records, before `.gz` and `.zst`.
RECORD_SUFFIXES = frozenset(_READERS)
#: Of formats whose rows have no lines: a record's name says `#row`.
_COLUMNAR = frozenset({".parquet", ".arrow", ".feather", ".array_record", ".arrayrecord"})


def read_rows(address: str, columns: Sequence[str] | None = None, suffix: str | None = None) -> Iterator[Row]:
    """Yields the rows of a file, a part of it in memory at a time; a row may hold a problem instead of fields.

    `columns` are those needed, None for all; `suffix` overrides the file's own. Raises CorpusError, naming file and
    row, where nothing beyond a place can be read.
    """
    suffix = suffix_of(address) if suffix is None else suffix
    reader = _READERS.get(suffix)
    if reader is None:
        known = ", ".join(sorted(RECORD_SUFFIXES))
        message = f"{address}: no reader for {suffix or 'a file without a suffix'}; records end in {known}"
        raise CorpusError(message)
    number = 0
    with readable(address, lambda: f" after row {number}" if number else ""):
        for row in reader(address, columns):
            number = row.number
            yield row


def record_name(file: str, number: int) -> str:
    """Returns a record's name: `path:line`, or `path#row` of files without lines."""
    return f"{file}{'#' if suffix_of(file) in _COLUMNAR else ':'}{number}"
