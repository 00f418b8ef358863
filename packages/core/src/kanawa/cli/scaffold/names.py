"""What a generated package is called and who publishes it: `my-layer`, `my_layer`, `MyLayer`; licence and author."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from dataclasses import dataclass

from kanawa.errors import UsageError
from kanawa.plugins import host

_FORM = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
DEFAULT_LICENSE = "Apache-2.0"
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
    if keyword.iskeyword(names.package) or names.package in sys.stdlib_module_names:
        what = "a word of Python" if keyword.iskeyword(names.package) else "a module of Python's standard library"
        message = f"plugin name {text!r} is {what}, so its package can't be imported; try 'my-{text}'"
        raise UsageError(message)
    if _OURS.fullmatch(text):
        message = f"plugin name {text!r} is one of Kanawa's own distributions; choose another, such as 'my-layer'"
        raise UsageError(message)
    if importlib.util.find_spec(names.package) is not None and text not in host().installed():
        message = f"plugin name {text!r} is that of another package here; choose another, such as 'my-{text}'"
        raise UsageError(message)
    return names


@dataclass(frozen=True)
class Publisher:
    """A licence as an SPDX expression, and one author; `author` is the TOML table of pyproject's list."""

    license: str
    author: str


def publisher(distribution: str, license_text: str = DEFAULT_LICENSE, author: str = "") -> Publisher:
    """Returns the publisher; without an author, a placeholder that says what belongs there.

    Raises UsageError for a licence that SPDX doesn't know, or an author that isn't "Name" or "Name <mail>".
    """
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        expression = canonicalize_license_expression(license_text)
    except InvalidLicenseExpression as error:
        message = f"--license {license_text!r} is no SPDX expression; write one such as Apache-2.0, MIT, BSD-3-Clause"
        raise UsageError(message) from error
    match = re.fullmatch(r"([^<>]+?)(?:\s*<([^<>@\s]+@[^<>@\s]+)>)?", author.strip() or f"The {distribution} authors")
    if match is None:
        form = "expected a name, or a name and an address, as in 'Ada Lovelace <ada@example.org>'"
        message = f"--author {author!r}: {form}"
        raise UsageError(message)
    name, mail = match.groups()
    # JSON's strings are TOML's: whatever is in a name is escaped.
    table = {"name": name} | ({"email": mail} if mail else {})
    inside = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items())
    return Publisher(str(expression), f"{{ {inside} }}")
