"""A page as what can be done with it: commands, Python, files to write, and output that should come.

Blocks of `sh` and `python` are run unless a comment on the line before the fence says otherwise:

    <!-- not run: REASON -->        neither here nor nightly; the reason says what it would need
    <!-- run nightly: REASON -->    by `nox -s nightly` only
    <!-- given: COMMANDS -->        run before the block: what the reader is said to have already
    <!-- run with: ARGUMENTS -->    these are added to every `kanawa train` of the block, so that it ends in seconds;
                                    `small` stands for what makes the quickstart's experiment small
    <!-- run in: FOLDER -->         a shell block, in a folder below the page's own
    <!-- exits: CODE -->            the last command of the block fails with this code, as the page says
    <!-- file: PATH -->             the block, of any language, is what this file then holds
    <!-- adds to: PATH -->          the block is put at the end of this file
    <!-- adds to: PATH after: LINE -->   or after this line of it

A block of `text` right after commands is what they print: its lines come in this order, and `…` stands for anything.
"""

import dataclasses
import pathlib
import re

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*) *$")
_NAMES = "not run|run nightly|given|run with|run in|exits|file|adds to"
#: Around what a command writes into a page.
_GENERATED = re.compile(r"<!-- (end )?generated: [a-z ]+ -->$")
_MARKER = re.compile(rf"^ *<!-- (?P<name>{_NAMES}): (?P<value>.+?) -->$")
_RUNS = ("sh", "python")
_MEANS = {
    "sh": {"not run", "run nightly", "given", "run with", "run in", "exits"},
    "python": {"given", "not run", "run nightly"},
}
_ANY = {"file", "adds to"}


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block: its language, text, first line, markers, and the output shown after it."""

    language: str
    text: str
    line: int
    markers: dict[str, str]
    output: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether the block is a file's text."""
        return bool(self.markers.keys() & _ANY)

    @property
    def is_run(self) -> bool:
        """Whether the block is executed, now or nightly."""
        return self.language in _RUNS and not self.is_file and "not run" not in self.markers

    @property
    def is_nightly(self) -> bool:
        """Whether only the nightly session executes the block."""
        return "run nightly" in self.markers


class PageError(Exception):
    """A page that can't be read as this module says."""


def read(path: pathlib.Path) -> list[Block]:
    """Returns the blocks of a page, in order.

    Raises:
        PageError: A fence that never ends, an unknown marker, or one that means nothing for its block.
    """
    lines = path.read_text().splitlines()
    blocks: list[Block] = []
    markers: dict[str, str] = {}
    number, shown_after = 0, None
    while number < len(lines):
        line = lines[number]
        fence, marker = _FENCE.match(line), _MARKER.match(line)
        if fence:
            start = number + 1
            number = _end(path, lines, start, fence["indent"])
            text = "\n".join(row.removeprefix(fence["indent"]) for row in lines[start:number]) + "\n"
            if fence["language"] == "text" and shown_after is not None:
                blocks[shown_after] = dataclasses.replace(blocks[shown_after], output=text)
            else:
                blocks.append(_checked(path, Block(fence["language"], text, start + 1, markers)))
            shown_after = len(blocks) - 1 if fence["language"] == "sh" else None
            markers = {}
        elif marker:
            markers[marker["name"]] = marker["value"]
        elif line.strip():
            if markers:
                message = f"{path.name}:{number + 1}: the marker {markers} stands before no block"
                raise PageError(message)
            if line.lstrip().startswith("<!--") and not _GENERATED.match(line):
                message = f"{path.name}:{number + 1}: unknown marker {line.strip()}"
                raise PageError(message)
            shown_after = None
        number += 1
    return blocks


def _end(path: pathlib.Path, lines: list[str], start: int, indent: str) -> int:
    for number in range(start, len(lines)):
        if lines[number].rstrip() == indent + "```":
            return number
    message = f"{path.name}:{start}: this block never ends"
    raise PageError(message)


def _checked(path: pathlib.Path, block: Block) -> Block:
    wrong = set(block.markers) - _MEANS.get(block.language, set()) - _ANY
    if wrong:
        message = f"{path.name}:{block.line}: {sorted(wrong)} means nothing for a block of {block.language or 'text'}"
        raise PageError(message)
    return block
