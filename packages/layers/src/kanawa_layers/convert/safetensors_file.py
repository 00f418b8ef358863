"""The safetensors format, read through a memory map and written one tensor at a time.

A file is a little-endian u64 length, a JSON header of that length {name: {dtype, shape, data_offsets}} and the
tensors' bytes, back to back (https://github.com/huggingface/safetensors, "Format").
"""

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from kanawa.guarded_read import check_readable, parsed_json

from kanawa_layers.convert.errors import SafetensorsError

#: The format's dtype names. Sub-byte types have no NumPy form and are refused by name.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
#: The reference implementation's limit of a header.
MAX_HEADER_BYTES = 100_000_000
#: NumPy's limit, in every version.
_MOST_AXES = 32
_MOST_NAME_LENGTH = 1024
_MOST_BYTES = 2**63 - 1
_MOST_SHOWN = 120
_ALIGNMENT = 8
METADATA = "__metadata__"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file: the format's name of its dtype, its shape, and its first and last byte."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        """How many elements the tensor has."""
        return math.prod(self.shape)

    def read(self) -> np.ndarray:
        """Returns the tensor as a view of the file."""
        return self.read_bytes().view(DTYPES[self.dtype]).reshape(self.shape)

    def read_bytes(self) -> np.ndarray:
        """Returns the tensor's bytes as a view of the file, uint8 [bytes]."""
        # An empty range can't be mapped.
        if self.start == self.stop:
            return np.empty(0, np.uint8)
        raw = np.memmap(self.file, np.uint8, mode="r", offset=self.start, shape=(self.stop - self.start,))
        return np.asarray(raw)


def read_header(file: Path) -> dict[str, Entry]:
    """Returns every tensor's entry; raises SafetensorsError for any invalid header."""
    try:
        check_readable(file)
        size = file.stat().st_size
        with file.open("rb") as stream:
            first = stream.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
            if not 0 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise _broken(file, f"its header would be {length} bytes long, but the file has {size}")
            text = stream.read(length)
    except OSError as error:
        raise _broken(file, f"it can't be read: {error}") from error
    try:
        header = parsed_json(text, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise _broken(file, f"its header isn't JSON: {error}") from error
    if not isinstance(header, dict):
        raise _broken(file, f"its header is a {type(header).__name__}, expected an object")
    start = 8 + length
    entries = {name: _entry(file, name, fields, start) for name, fields in header.items() if name != METADATA}
    _check_layout(file, entries, start, size)
    return entries


def _entry(file: Path, name: str, fields: Any, start: int) -> Entry:
    if not 0 < len(name) <= _MOST_NAME_LENGTH or not name.isprintable():
        raise _broken(
            file, f"a tensor's name is {_shown(name)}, expected 1 to {_MOST_NAME_LENGTH} printable characters"
        )
    try:
        dtype, shape, (first, last) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(file, f"tensor {name!r} has no valid dtype, shape and data_offsets: {_shown(fields)}") from error
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _broken(file, f"tensor {name!r} has dtype {_shown(dtype)}; known: {', '.join(DTYPES)}")
    # A bool is an int in Python, but not a length.
    if len(shape) > _MOST_AXES or not all(type(n) is int and 0 <= n <= _MOST_BYTES for n in (*shape, first, last)):
        raise _broken(file, f"tensor {name!r} has shape {_shown(shape)} and offsets {_shown((first, last))}")
    if math.prod(max(n, 1) for n in shape) * DTYPES[dtype].itemsize > _MOST_BYTES:
        raise _broken(file, f"tensor {name!r} of {dtype} {list(shape)} has more bytes than can be counted")
    if last - first != math.prod(shape) * DTYPES[dtype].itemsize:
        raise _broken(file, f"tensor {name!r} of {dtype} {list(shape)} can't take {last - first} bytes")
    return Entry(file, dtype, shape, start + first, start + last)


def _shown(value: Any) -> str:
    """Returns a value of an untrusted header, shortened for a message."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "an integer of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}… ({len(text):,} characters)"


def _check_layout(file: Path, entries: Mapping[str, Entry], start: int, size: int) -> None:
    # The format allows neither holes nor overlaps: unowned bytes could hide another file.
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != at:
            raise _broken(file, f"tensor {name!r} starts at byte {entry.start}, expected {at}")
        at = entry.stop
    if at != size:
        raise _broken(file, f"its tensors end at byte {at}, but the file has {size}: it was cut short, or grew")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json silently takes the last of two equal names, and another reader may take the first.
    once = dict(pairs)
    if len(once) != len(pairs):
        message = "a name occurs twice"
        raise ValueError(message)
    return once


def _broken(file: Path, what: str) -> SafetensorsError:
    return SafetensorsError(f"{file} isn't a valid safetensors file: {what}; download or copy it again")


def write_file(
    file: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    value: Callable[[str], np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors of these (dtype name, shape) in order, one value at a time.

    The header is padded so that every tensor starts aligned. Durable when it returns; raises OSError.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        stop = at + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, (dtype, shape) in tensors.items():
            array = np.asarray(value(name))
            if array.shape != shape or array.dtype != DTYPES[dtype]:
                message = f"{name}: {array.dtype}{list(array.shape)} was passed for {dtype}{list(shape)}"
                raise SafetensorsError(message)
            # As bytes: bfloat16 arrays offer no buffer of their own type.
            stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        stream.flush()
        os.fsync(stream.fileno())
