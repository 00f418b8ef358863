"""One name in its three spellings: distribution `my-layer`, package `my_layer`, class `MyLayer`."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from kanawa.errors import UsageError

_FORM = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OURS = re.compile(r"kanawa(-(core|layers|parallel|runtime|backends-\w+))?")


@dataclass(frozen=True)
class Names:
    """The spellings of a plugin's name."""

    distribution: str

    @property
    def package(self) -> str:
        """What is imported."""
        return self.distribution.replace("-", "_")

    @property
    def class_name(self) -> str:
        """What the component's class is called."""
        return "".join(part.capitalize() for part in self.distribution.split("-"))


def plugin_names(text: str) -> Names:
    """Returns the spellings of a name; raises UsageError for one that pip or Python wouldn't take."""
    suggestion = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    suggestion = re.sub(r"^[0-9-]+", "", suggestion)
    if not _FORM.fullmatch(text):
        hint = f"; try {suggestion!r}" if _FORM.fullmatch(suggestion) else ""
        message = f"plugin name {text!r}: expected small letters, digits and single hyphens, such as 'my-layer'{hint}"
        raise UsageError(message)
    names = Names(text)
    if keyword.iskeyword(names.package):
        message = f"plugin name {text!r} is a word of Python and can't be imported; try 'my-{text}'"
        raise UsageError(message)
    if _OURS.fullmatch(text):
        message = f"plugin name {text!r} is one of Kanawa's own distributions; choose another, such as 'my-layer'"
        raise UsageError(message)
    return names
