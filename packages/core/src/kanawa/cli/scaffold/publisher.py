"""Who publishes a generated package, and under which licence, in the words of pyproject.toml."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from kanawa.errors import UsageError

DEFAULT_LICENSE = "Apache-2.0"


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
