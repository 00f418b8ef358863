"""JSON of long answers, in slices: Python's own encoder keeps every other thread waiting until it is done."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Elements of a list that are written at once: some milliseconds.
_SLICE = 256


def json_bytes(content: Any) -> bytes:
    """Returns content as JSON, in ASCII: half a surrogate pair, which JSON may hold, has no UTF-8."""
    return "".join(_pieces(content)).encode()


def _pieces(content: Any) -> Iterator[str]:
    if isinstance(content, Mapping) and content:
        between = "{"
        for name, value in content.items():
            yield f"{between}{json.dumps(str(name))}:"
            yield from _pieces(value)
            between = ","
        yield "}"
    elif isinstance(content, list | tuple) and len(content) > _SLICE:
        between = "["
        for start in range(0, len(content), _SLICE):
            yield between + _plain(content[start : start + _SLICE])[1:-1]
            between = ","
        yield "]"
    elif isinstance(content, list | tuple) and any(isinstance(one, Mapping) for one in content):
        # Choices of an answer: few, and each may hold long lists.
        between = "["
        for one in content:
            yield between
            yield from _pieces(one)
            between = ","
        yield "]"
    else:
        yield _plain(content)


def _plain(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))
