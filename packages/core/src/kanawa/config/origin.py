"""Who set a config value: the stage, and the file and line of the assigning code.

Origins lie beside values. They never take part in equality, hash, digest or text.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Origin(NamedTuple):
    """One assignment: stage and detail, where it happened, and the value as text."""

    stage: str
    detail: str
    file: str
    line: int
    value: str = ""

    @property
    def where(self) -> str:
        """Returns `file:line`."""
        return f"{self.file}:{self.line}"


_STAGE: ContextVar[tuple[str, str]] = ContextVar("kanawa_origin", default=("code", ""))
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OUTSIDE: dict[str, bool] = {}


@contextmanager
def origin(stage: str, detail: str = "") -> Iterator[None]:
    """Marks every assignment inside the block as made by this stage."""
    token = _STAGE.set((stage, detail))
    try:
        yield
    finally:
        _STAGE.reset(token)


def current_stage() -> tuple[str, str]:
    """Returns (stage, detail) of the innermost `origin` block; ("code", "") outside any."""
    return _STAGE.get()


def caller() -> tuple[str, int]:
    """Returns file and line of the nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_outside(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_outside(file: str) -> bool:
    known = _OUTSIDE.get(file)
    if known is None:
        known = _OUTSIDE[file] = not os.path.abspath(file).startswith(_HERE)
    return known
