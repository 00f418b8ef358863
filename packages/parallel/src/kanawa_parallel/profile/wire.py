"""The wire format of protocol buffers, as far as a trace needs it: fields of a message, without its schema.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> dict[int, list[Any]]:
    """Returns each field's values by its number: integers, or bytes of strings, messages and packed numbers.

    Raises ValueError for what is no message.
    """
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in _each(message):
        found[number].append(value)
    return found


def integers(values: list[Any]) -> list[int]:
    """Returns a repeated integer field, packed or not."""
    return [number for value in values for number in (_packed(value) if isinstance(value, bytes) else [value])]


def text(values: list[Any]) -> str:
    """Returns a string field; empty where the message has none."""
    return values[-1].decode("utf-8", "replace") if values else ""


def _each(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            message_ = f"field {number} at byte {at} has the unknown wire type {kind}"
            raise ValueError(message_)
        if at + length > len(message):
            message_ = f"field {number} at byte {at} is cut off"
            raise ValueError(message_)
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    text_ = f"a number is cut off at byte {at}"
    raise ValueError(text_)


def _packed(value: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers
