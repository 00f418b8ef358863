"""JSON Lines: an object a line."""

import json
from collections.abc import Iterator
from typing import BinaryIO

from kanawa_runtime.data.records.rows import Row, not_utf8, text_lines


def json_rows(stream: BinaryIO, address: str) -> Iterator[Row]:
    """Yields a row a line that isn't blank, numbered by line."""
    for number, line in text_lines(stream, address):
        if not line.strip():
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError:
            yield Row(number, {}, not_utf8(line))
            continue
        yield _parsed(number, text)


def _parsed(number: int, line: str) -> Row:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        hint = "each line must be one object"
        ends_early = error.pos >= len(line.rstrip()) or error.msg.startswith("Unterminated string")
        if number == 1 and line.strip() in ("[", "{"):
            hint += "; this looks like one JSON document over several lines: write it as JSON Lines (jq -c '.[]')"
        elif ends_early:
            hint += "; the line ends too early, as in a file that was half written"
        return Row(number, {}, f"not JSON: {error.msg} at column {error.colno}; {hint}")
    except RecursionError:
        return Row(number, {}, "not usable JSON: it is nested too deeply")
    if not isinstance(record, dict):
        return Row(number, {}, f"found a {type(record).__name__}, expected an object with named fields")
    return Row(number, record)
