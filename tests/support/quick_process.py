"""Imported before JAX traces: this process collects garbage seldom, and writes its programs into one MLIR context.

Tests trace thousands of small programs. Without this a fifth of their time goes to looking through what JAX keeps for
garbage, and to making the context, with all its dialects, of each program anew.
"""

import functools
import gc
import inspect
import threading
from collections.abc import Callable
from typing import Any

#: Objects made until the young ones are looked at, and how often those are until older ones are.
GARBAGE = (50_000, 20, 100)
#: Programs that share a context; it keeps the types and places in source of all of them.
PROGRAMS = 200


class Contexts(threading.local):
    """A thread's context, renewed after so many programs."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._kept, self._left = make, None, 0

    def __call__(self) -> Any:
        """Returns the context for one more program."""
        if not self._left:
            self._kept, self._left = self._make(), PROGRAMS
        self._left -= 1
        return self._kept


def share_contexts() -> None:
    """Has JAX lower programs into shared contexts; a JAX that is made otherwise keeps making its own."""
    try:
        from jax._src.interpreters import mlir

        kind, contexts = mlir.ModuleContext, Contexts(mlir.make_ir_context)
        parameters = inspect.signature(kind.__init__).parameters
    except (ImportError, AttributeError, ValueError):
        return
    made = kind.__init__
    if "context" not in parameters or getattr(made, "is_shared", False):
        return

    @functools.wraps(made)
    def shared(self: Any, *arguments: Any, **named: Any) -> None:
        if named.get("context") is None and named.get("module") is None:
            named["context"] = contexts()
        made(self, *arguments, **named)

    shared.is_shared = True  # type: ignore[attr-defined]
    kind.__init__ = shared


gc.set_threshold(*GARBAGE)
share_contexts()
