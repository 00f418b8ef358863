"""Cuts bytes into pieces that merges never cross, so that each distinct piece is worked on once.

Made for source code as much as prose. The end of a line, any blank lines after it and the next
line's indentation are one piece, with the punctuation that closes the line (`):` and eight spaces
become one token). A word takes along the one character before it (` self`, `.append`, `_name`).
Every repetition is bounded, so that no input, however odd, makes a piece whose encoding is
quadratic in anything but a small number.
"""

import re
from collections import Counter
from collections.abc import Iterable

# Every byte of a character beyond ASCII counts as a letter, so that no cut falls inside one.
_WORD = rb"A-Za-z\x80-\xff"

# The commonest alternative first; only one of the first two can match at a place.
PRETOKEN = re.compile(
    rb"[^0-9\r\n" + _WORD + rb"]?[" + _WORD + rb"]{1,64}"
    rb"| ?[^\s0-9" + _WORD + rb"]{0,32}[\r\n][ \t\r\n]{0,127}"
    rb"| ?[0-9]{1,3}"
    rb"| ?[^\s0-9" + _WORD + rb"]{1,32}"
    rb"|[ \t]{1,128}"
    rb"|[\x00-\xff]"
)


def split(data: bytes) -> list[bytes]:
    """Returns the pieces of `data`; their concatenation is `data`."""
    return PRETOKEN.findall(data)


def count(documents: Iterable[bytes]) -> Counter[bytes]:
    """Returns how often each piece occurs in `documents`."""
    counts: Counter[bytes] = Counter()
    for data in documents:
        counts.update(split(data))
    return counts
