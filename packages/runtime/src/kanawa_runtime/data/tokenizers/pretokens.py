"""Cuts bytes into pieces that merges never cross, so that each distinct piece is worked on once.

Made for source code as much as prose. The end of a line, any blank lines after it and the next
line's indentation are one piece, with the punctuation that closes the line (`):` and eight spaces
become one token). A word takes along the one character before it (` self`, `.append`, `_name`).
Every repetition is bounded, so that no input, however odd, makes a piece whose encoding is
quadratic in anything but a small number.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

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


#: Bytes whose pieces are made in one go; and more than any piece has, so that what ends before is a piece of the whole.
_PART_BYTES, _LONGEST_BYTES = 1 << 20, 256


def split_by_parts(data: bytes) -> Iterator[list[bytes]]:
    """Yields the pieces of `data` as `split` returns them, those of about a megabyte at a time."""
    begin = 0
    while begin < len(data):
        pieces = PRETOKEN.findall(data, begin, begin + _PART_BYTES)
        taken = sum(map(len, pieces))
        if begin + taken < len(data):
            # The end of the part may have cut pieces: those near it are made again.
            while pieces and taken > _PART_BYTES - _LONGEST_BYTES:
                taken -= len(pieces.pop())
        begin += taken
        yield pieces


def count(documents: Iterable[bytes]) -> Counter[bytes]:
    """Returns how often each piece occurs in `documents`."""
    counts: Counter[bytes] = Counter()
    for data in documents:
        for pieces in split_by_parts(data):
            counts.update(pieces)
    return counts
