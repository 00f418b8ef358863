"""The one way the command line writes: text, aligned tables, JSON to stdout; messages to stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def usable_streams() -> None:
    """Makes standard streams take any text: started without them there are none, and names may not be UTF-8."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (for the process's life)
    # stderr escapes what it can't write; stdout would raise, at an ASCII terminal and over a name that isn't UTF-8.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Flushes stdout; raises OSError, or BrokenPipeError where its reader has closed it."""
    sys.stdout.flush()


def forget_stdout() -> None:
    """Sends what is still to come nowhere, or Python would complain at exit of a pipe that is closed."""
    with contextlib.suppress(OSError, ValueError):  # not a stream of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    """Writes a message for the person at the terminal to stderr, in characters that only print."""
    # A name in somebody else's file may hold what a terminal obeys, such as ESC[2J.
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    with contextlib.suppress(OSError):  # there is no reader left
        sys.stderr.write(shown if shown.endswith("\n") else shown + "\n")


def write_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes rows under a header, columns aligned by spaces; the last column may be any length."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        write("  ".join(cells).rstrip())
