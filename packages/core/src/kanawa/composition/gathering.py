"""Collects the problems of several steps, so that one error reports them all."""

import contextlib
from collections.abc import Iterator

from kanawa.errors import CompositionError, KanawaError


class Problems:
    """The errors of a composition so far, in the order of its steps."""

    def __init__(self) -> None:
        """Nothing is wrong yet."""
        self._errors: list[KanawaError] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Keeps a KanawaError of the block for later, once: steps may stumble over the same fault."""
        try:
            yield
        except KanawaError as error:
            if _text(error) not in map(_text, self._errors):
                self._errors.append(error)

    def add(self, text: str) -> None:
        """Adds a problem that wasn't raised."""
        with self.noted():
            raise CompositionError([text])

    def report(self) -> None:
        """Raises what was noted: a single error as it was raised, several as one CompositionError."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise CompositionError([_text(error) for error in self._errors])


def _text(error: KanawaError) -> str:
    notes = [f"  {note}" for note in getattr(error, "__notes__", ())]
    return "\n".join([str(error), *notes])
