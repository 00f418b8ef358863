"""A row of a file: its fields, or what is wrong with it; and the checks of text that several formats share."""

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from kanawa_runtime.data.errors import CorpusError

#: Marks at the start of files that other encodings leave.
_OTHER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
#: Longer lines are no lines: a JSON array or a binary file under another name.
MOST_LINE_BYTES = 1 << 28


class Row(NamedTuple):
    """Row `number` of a file, from 1 (a line of text formats): its fields, or a `problem` and no fields."""

    number: int
    fields: dict[str, Any]
    problem: str = ""


def text_lines(stream: BinaryIO, address: str) -> Iterator[tuple[int, bytes]]:
    """Yields (line from 1, bytes without its end); raises CorpusError for UTF-16 and for lines beyond all bounds."""
    number = 0
    first = True
    while chunk := stream.readline(MOST_LINE_BYTES + 1):
        if first:
            check_mark(chunk, address)
            chunk, first = chunk.removeprefix(codecs.BOM_UTF8), False
        if len(chunk) > MOST_LINE_BYTES:
            message = (
                f"{address}:{number + 1}: the line is longer than {MOST_LINE_BYTES >> 20} MiB; "
                "write one document or object a line"
            )
            raise CorpusError(message)
        # Bytes end lines at CR and LF alone; str.splitlines would also cut at U+2028, which JSON may hold as it is.
        for line in chunk.splitlines():
            number += 1
            yield number, line


def check_mark(start: bytes, address: str) -> None:
    """Raises CorpusError for a file that begins as another encoding does."""
    for mark, encoding in _OTHER_MARKS.items():
        if start.startswith(mark):
            message = (
                f"{address} isn't UTF-8 text: it begins as {encoding} does. Convert it (iconv -f {encoding} -t UTF-8), "
                "or leave it out of the patterns"
            )
            raise CorpusError(message)


def not_utf8(data: bytes) -> str:
    """Returns what is wrong with bytes as UTF-8 text; "" for valid ones."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return (
            f"not UTF-8: byte 0x{data[error.start]:02x} at column {error.start + 1}; convert the file "
            "(iconv -f LATIN1 -t UTF-8, if that is what it is)"
        )
    return ""


#: What else records are for, by fields that say so: (fields, what they are, the modifier that reads them).
_OTHER_USES = (
    ({"prompt", "chosen", "rejected"}, "preference pairs", "dpo"),
    ({"chosen", "rejected"}, "preference pairs", "dpo"),
    ({"messages"}, "conversations", "sft"),
    ({"conversations"}, "conversations", "sft"),
    ({"prompt", "completion"}, "prompts and completions", "sft"),
    ({"prompt"}, "prompts", "grpo"),
)


def other_use(fields: Iterable[str]) -> str:
    """Returns a suffix for an error message: the modifier that reads records with these fields, if there is one."""
    there = set(fields)
    for wanted, what, modifier in _OTHER_USES:
        if wanted <= there:
            return f"; these are {what}, which --modify {modifier} reads"
    return ""
