"""Tracing for shapes alone: nothing will be compiled, so a kernel needs no library of its platform to be there."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_outlined: ContextVar[bool] = ContextVar("kanawa_outline", default=False)


@contextlib.contextmanager
def outline() -> Iterator[None]:
    """Says that what is traced in the block is only looked at."""
    token = _outlined.set(True)
    try:
        yield
    finally:
        _outlined.reset(token)


def outlined() -> bool:
    """Returns whether what is traced now is only looked at."""
    return _outlined.get()
