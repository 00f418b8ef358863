"""Parquet files, a row group in memory at a time, and Arrow files, a batch at a time; needs pyarrow."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from kanawa.errors import did_you_mean

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import compression_of, is_address, opened, opened_as_it_is
from kanawa_runtime.data.records.extras import needed
from kanawa_runtime.data.records.rows import Row, other_use

_BATCH_ROWS = 256
_FILE_MAGIC = b"ARROW1"


def parquet_rows(address: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yields rows numbered from 1 with all columns, or those named; raises CorpusError for one that isn't there."""
    parquet = needed("pyarrow.parquet", f"reading {address}")
    if compression_of(address):
        message = f"{address}: Parquet compresses its own columns and can't be read inside {compression_of(address)}"
        raise CorpusError(message)
    with opened_as_it_is(address) as file, _source(file, address) as source, parquet.ParquetFile(source) as table:
        chosen = _chosen(table.schema_arrow, columns, address)
        # Group by group: over all of them the library holds on to what it has read.
        groups = (
            table.iter_batches(batch_size=_BATCH_ROWS, columns=chosen, use_threads=False, row_groups=[group])
            for group in range(table.num_row_groups)
        )
        yield from _rows(itertools.chain.from_iterable(groups))


def _source(file: BinaryIO, address: str) -> Any:
    """Returns what the library reads from: a file of its own where it can.

    It lets go of one of Python's in a thread of its own, which ends the process when Python is ending.
    """
    if is_address(address):
        return contextlib.nullcontext(file)
    return needed("pyarrow", f"reading {address}").OSFile(address)


def arrow_rows(address: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yields rows of an Arrow IPC file or stream, numbered from 1; see `parquet_rows`."""
    arrow = needed("pyarrow", f"reading {address}")
    ipc = needed("pyarrow.ipc", f"reading {address}")
    if is_address(address) or compression_of(address):
        with opened(address) as file:
            yield from _arrow_file(ipc, file, file, address, columns)
        return
    with opened_as_it_is(address) as file, arrow.memory_map(address) as mapped:
        yield from _arrow_file(ipc, file, mapped, address, columns)


def _arrow_file(ipc: Any, start: BinaryIO, source: Any, address: str, columns: Sequence[str] | None) -> Iterator[Row]:
    if not compression_of(address):
        magic = start.read(len(_FILE_MAGIC))
        start.seek(0)
        if magic == _FILE_MAGIC:
            with ipc.open_file(source) as table:
                chosen = _chosen(table.schema, columns, address)
                yield from _rows(_small(table.get_batch(i), chosen) for i in range(table.num_record_batches))
            return
    with ipc.open_stream(source) as table:
        chosen = _chosen(table.schema, columns, address)
        yield from _rows(_small(batch, chosen) for batch in table)


def _small(batch: Any, columns: Sequence[str]) -> Any:
    return batch.select(list(columns))


def _rows(batches: Iterator[Any]) -> Iterator[Row]:
    number = 0
    for whole in batches:
        for begin in range(0, whole.num_rows, _BATCH_ROWS):
            batch = whole.slice(begin, _BATCH_ROWS)
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError:
                rows = [_one(batch.slice(place, 1)) for place in range(batch.num_rows)]
            for fields in rows:
                number += 1
                yield Row(number, {}, fields) if isinstance(fields, str) else Row(number, fields)


def _one(batch: Any) -> dict[str, Any] | str:
    """Returns the fields of a batch of one row, or what is wrong with its text."""
    fields = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            fields[name] = column[0].as_py()
        except UnicodeDecodeError as error:
            return f"column {name!r} isn't UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
    return fields


def _chosen(schema: Any, columns: Sequence[str] | None, address: str) -> list[str]:
    """Returns the columns to read; raises CorpusError with what is there for one that isn't."""
    there = list(schema.names)
    for name in columns or ():
        if name not in there:
            message = f"{address}: no column {name!r}{did_you_mean(name, there)}{other_use(there)}"
            raise CorpusError(message)
    return there if columns is None else list(columns)
