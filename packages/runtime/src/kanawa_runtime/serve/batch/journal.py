"""The answers so far, on disk in the order in which they came; the output is made of it once all are there.

A process may be killed at any time: complete lines stay, a torn last line is removed, and the next start resumes.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kanawa.errors import UsageError


class Journal:
    """The file OUTPUT.partial: a line that says what is answered, then one a result, each with its `line`."""

    def __init__(self, output: Path, subject: Mapping[str, Any]) -> None:
        """Opens it, or resumes an existing one; raises UsageError for another subject, or a finished one."""
        self.output, self.path = output, output.with_name(f"{output.name}.partial")
        if output.exists():
            message = f"{output} already exists; give another --output, nothing is overwritten"
            raise UsageError(message)
        self.done: set[int] = set()
        self.failed = 0
        first = json.dumps(dict(subject), sort_keys=True)
        if self.path.exists():
            self._resume(first)
        self._file = self.path.open("ab")
        if self._file.tell() == 0:
            self._write(first)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the file."""
        self._file.close()

    def add(self, number: int, record: Mapping[str, Any]) -> None:
        """Writes a result; once this returns a kill of the process doesn't lose it."""
        content = {"line": number, **record}
        text = json.dumps(content, ensure_ascii=False)
        # A line's own id may hold half of a surrogate pair, which has no UTF-8.
        self._write(text if text.isascii() or _has_utf8(text) else json.dumps(content))
        self.done.add(number)
        self.failed += "error" in record

    def finish(self) -> None:
        """Writes the output in the order of the input, in one move, and removes the journal."""
        self._file.flush()
        os.fsync(self._file.fileno())
        places: list[tuple[int, int]] = []
        with self.path.open("rb") as lines:
            place = len(lines.readline())
            for line in lines:
                places.append((json.loads(line)["line"], place))
                place += len(line)
            ordered = self.output.with_name(f"{self.output.name}.ordered")
            with ordered.open("wb") as out:
                for _, start in sorted(places):
                    lines.seek(start)
                    out.write(lines.readline())
                out.flush()
                os.fsync(out.fileno())
        os.replace(ordered, self.output)
        self.path.unlink()

    def _write(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def _resume(self, first: str) -> None:
        sound = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines):
                if not line.endswith(b"\n"):
                    break
                if number == 0 and line.decode(errors="replace").rstrip("\n") != first:
                    message = (
                        f"{self.path} holds answers to another input, model or sampling; remove it to start again, or "
                        "give another --output"
                    )
                    raise UsageError(message)
                if number:
                    record = json.loads(line)
                    self.done.add(record["line"])
                    self.failed += "error" in record
                sound += len(line)
        os.truncate(self.path, sound)


def _has_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
