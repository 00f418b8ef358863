"""Asking every component of a kind the same question: one of another distribution that raises stops nobody else."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kanawa.errors import INTERRUPTIONS
from kanawa.plugins.discovery import own_packages
from kanawa.plugins.fault import how_to_skip
from kanawa.plugins.manager import host
from kanawa.plugins.states import ComponentState

Answer = TypeVar("Answer")


def ask_each(kind: str, question: Callable[[Any], Answer]) -> Iterator[tuple[ComponentState, Any, Answer]]:
    """Yields each usable component of a kind, built without arguments, with what it answers to the question.

    One that raises, and isn't Kanawa's own, is left out with one warning that names its plugin.
    """
    for state, component in host().loaded(kind):
        try:
            built = component()
            answer = question(built)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            if state.distribution in own_packages():
                raise
            host().warn(f"{state.label} {state.name!r} failed: {type(error).__name__}: {error}; {how_to_skip(state)}")
        else:
            yield state, built, answer
