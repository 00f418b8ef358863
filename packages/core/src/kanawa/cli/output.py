"""The one way the command line writes: text, aligned tables, JSON to stdout; messages to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def write(text: str = "") -> None:
    """Writes text and a line end to stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def write_piece(text: str) -> None:
    """Writes text to stdout at once, without a line end: for what grows while one looks."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(data: Any) -> None:
    """Writes data as indented JSON to stdout."""
    write(json.dumps(data, indent=2, ensure_ascii=False))


def write_message(text: str) -> None:
    """Writes a message for the person at the terminal to stderr."""
    sys.stderr.write(text if text.endswith("\n") else text + "\n")


def write_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes rows under a header, columns aligned by spaces; the last column may be any length."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        write("  ".join(cells).rstrip())
