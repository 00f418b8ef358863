"""ArrayRecord files: records of bytes, which hold JSON objects, `tf.train.Example` messages or text."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import is_address, opened_as_it_is
from kanawa_runtime.data.records.extras import needed
from kanawa_runtime.data.records.rows import Row, not_utf8

_BATCH_RECORDS = 256
_MOST_VARINT_BYTES = 10


def array_record_rows(address: str) -> Iterator[Row]:
    """Yields rows numbered from 1; a record that is neither an object nor an Example is the field `text`."""
    if is_address(address):
        message = f"{address}: ArrayRecord files are read from a local disk; copy the file, or mount its store"
        raise CorpusError(message)
    module = needed("array_record.python.array_record_module", f"reading {address}")
    with opened_as_it_is(address) as file:
        if not file.read(1):
            message = f"{address}: the file is empty"
            raise CorpusError(message)
    reader = module.ArrayRecordReader(address)
    try:
        count = reader.num_records()
        for begin in range(0, count, _BATCH_RECORDS):
            records = reader.read(list(range(begin, min(count, begin + _BATCH_RECORDS))))
            for number, record in enumerate(records, begin + 1):
                yield _row(number, record)
    finally:
        reader.close()


def _row(number: int, record: bytes) -> Row:
    if record[:1] == b"{":
        try:
            fields = json.loads(record)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            return Row(number, fields)
    example = parsed_example(record)
    if example is not None:
        return Row(number, example)
    problem = not_utf8(record)
    return Row(number, {}, problem) if problem else Row(number, {"text": record.decode()})


def parsed_example(record: bytes) -> dict[str, Any] | None:
    """Returns the features of a `tf.train.Example`; None for bytes that are no such message.

    Bytes that are UTF-8 become strings. A feature of one value is that value, of several a list. The message is
    Example{1: Features{1: map<string, Feature>}}, Feature one of {1: bytes, 2: floats, 3: int64s}.
    """
    try:
        outer = list(_fields(record))
        if len(outer) != 1 or outer[0][0] != 1:
            return None
        fields: dict[str, Any] = {}
        for tag, entry in _fields(_bytes(outer[0][1])):
            parts = dict(_fields(_bytes(entry)))
            if tag != 1 or not set(parts) <= {1, 2}:
                return None
            fields[_bytes(parts[1]).decode()] = _feature(_bytes(parts.get(2, b"")))
    except (ValueError, KeyError, IndexError):
        return None
    return fields or None


def _feature(message: bytes) -> Any:
    values: list[Any] = []
    for kind, content in _fields(message):
        for tag, value in _fields(_bytes(content)):
            if tag != 1:
                raise ValueError(tag)
            if kind == 1:
                values.append(_text(_bytes(value)))
            elif kind == 2:
                values += np.frombuffer(_bytes(value), "<f4").tolist()
            elif isinstance(value, int):
                values.append(_signed(value))
            else:
                values += map(_signed, _varints(value))
    return values[0] if len(values) == 1 else values


def _text(value: bytes) -> str | bytes:
    return value if not_utf8(value) else value.decode()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError(value)
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MOST_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError(at)


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yields (tag, value) of a message in the protocol buffers' wire format; raises ValueError for other bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        tag, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(wire)
        if at + size > len(data):
            raise ValueError(at)
        yield tag, data[at : at + size]
        at += size
