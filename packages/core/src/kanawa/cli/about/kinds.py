"""Kinds of component as people write them: `show modifier moe` and `list modifiers` mean the same kind."""

from __future__ import annotations

from kanawa.errors import UnknownNameError, did_you_mean
from kanawa.plugins import host


def kind_named(text: str) -> str:
    """Returns the kind that a word in the singular or plural means; raises UnknownNameError with near ones."""
    kinds = {*host().kinds(), *(state.kind for state in host().components())}
    word = text.lower().replace("-", "_")
    plurals = (word, f"{word}s", f"{word}es", f"{word.removesuffix('y')}ies", f"{word.removesuffix('us')}ora")
    kind = next((plural for plural in plurals if plural in kinds), None)
    if kind is None:
        message = f"there is no kind {text!r}{did_you_mean(text, kinds)}"
        raise UnknownNameError(message)
    return kind
