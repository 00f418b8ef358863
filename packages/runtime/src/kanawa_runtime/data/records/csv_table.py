"""CSV and TSV: the first line names the columns; every value is a string."""

import csv
from collections.abc import Iterator
from typing import BinaryIO

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.rows import MOST_LINE_BYTES, Row, check_mark


def csv_rows(stream: BinaryIO, address: str, delimiter: str = ",") -> Iterator[Row]:
    """Yields rows numbered from 1 after the header; raises CorpusError for a header that names no columns."""
    # The library's bound of 128 KiB a field is one number for the whole process; documents are longer.
    csv.field_size_limit(MOST_LINE_BYTES)
    lines = _Lines(stream, address)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = next(reader, None)
    if header is None:
        return
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        message = f"{address}:1: the column {twice[0]!r} is there twice; give each column a name of its own"
        raise CorpusError(message)
    number = 0
    while True:
        number += 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, {}, f"not CSV: {error} (line {lines.number})")
            continue
        if lines.problem:
            problem, lines.problem = lines.problem, ""
            yield Row(number, {}, problem)
        elif not values:
            number -= 1
        elif len(values) != len(header):
            problem = f"{len(values)} values for {len(header)} columns (line {lines.number}): {', '.join(header)[:200]}"
            yield Row(number, {}, problem)
        else:
            yield Row(number, dict(zip(header, values, strict=True)))


class _Lines:
    """Lines as text with their ends, which the csv module needs inside quotes; notes bytes that aren't UTF-8."""

    def __init__(self, stream: BinaryIO, address: str) -> None:
        self._stream, self._address = stream, address
        self.number = 0
        self.problem = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(MOST_LINE_BYTES)
        if not line:
            raise StopIteration
        if self.number == 0:
            check_mark(line, self._address)
            line = line.removeprefix(b"\xef\xbb\xbf")
        self.number += 1
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            self.problem = (
                f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1} of line {self.number}; "
                "convert the file (iconv -f LATIN1 -t UTF-8, if that is what it is)"
            )
            return line.decode("utf-8", "replace")
