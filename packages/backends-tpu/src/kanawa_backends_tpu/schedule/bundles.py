"""Reads the text of `*final_bundles.txt`: one line a bundle, which a core issues in a cycle.

A line is `0x1b6 PF: > { %s1 = sld […] ;; %9 = sbr.rel (%p2) target = $region40 } /* End region 39 */`; comments may go
over several lines. Predicated branches go forward over what they guard and back to where a loop begins.
"""

import re
from dataclasses import dataclass, field

_LINE = re.compile(r"^ *(0x[0-9a-f]+|0) +(?:[A-Z]{2})? *:[> ]*\{")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BEGINS = re.compile(r"Start(?:/End empty)? region (\d+)")
_ENDS = re.compile(r"\bEnd region \d+")
_BRANCH = re.compile(r"sbr\.rel(?: \((!?)%(\w+)\))? target = \$region(\d+)")
_EXIT = re.compile(r"exit bundle: %(\S+) = .*?custom-call")
_GRID = re.compile(r"iteration_bounds: \(([\d, ]+)\)")
#: Bundles behind a branch that run whether it is taken or not.
_DELAY_SLOTS = 4


@dataclass(frozen=True)
class Branch:
    """A jump from bundle `at` to bundle `to`, where `predicate` holds, or doesn't if `negated`; always without one."""

    at: int
    to: int
    predicate: str = ""
    negated: bool = False

    @property
    def after(self) -> int:
        """The first bundle that a taken branch skips."""
        return self.at + 1 + _DELAY_SLOTS


@dataclass(frozen=True)
class Bundle:
    """The scalar instructions of a bundle, without comments, and whether it reads which core it runs on."""

    instructions: tuple[str, ...]
    reads_core: bool = False


@dataclass(frozen=True)
class Program:
    """A kernel's bundles, its branches by the bundle they stand in, and the grid that one core walks."""

    name: str
    bundles: tuple[Bundle, ...]
    branches: dict[int, Branch] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    megacore: bool = False

    def is_inner(self, loop: Branch) -> bool:
        """Returns whether a loop, known by its jump back, lies within another."""
        loops = (branch for branch in self.branches.values() if branch.to < branch.at)
        return any(other.to <= loop.to and loop.at < other.at for other in loops)


def parse(text: str) -> Program:
    """Returns the program of one `final_bundles.txt`; raises ValueError where it holds no bundle."""
    pieces = _pieces(text)
    if not pieces:
        message = "no bundle: this isn't the text of a schedule"
        raise ValueError(message)
    begins: dict[str, int] = {}
    for at, piece in enumerate(pieces):
        for region in _BEGINS.findall(piece):
            begins.setdefault(region, at)
    branches = {}
    for at, piece in enumerate(pieces):
        match = _BRANCH.search(piece)
        if match is not None:
            # What no region bears is the end: a core that has nothing to do leaves.
            branches[at] = Branch(at, begins.get(match[3], len(pieces) - 1), match[2] or "", match[1] == "!")
    ended = _EXIT.search(text)
    grid = _GRID.search(text)
    return Program(
        name=ended[1] if ended else "",
        bundles=tuple(Bundle(_instructions(piece), "core id */" in piece) for piece in pieces),
        branches=branches,
        grid=tuple(int(size) for size in grid[1].split(",") if size.strip()) if grid else (),
        megacore="megacore core id" in text,
    )


def _pieces(text: str) -> list[str]:
    """Returns the text of each bundle with the lines that its comments go on for."""
    pieces: list[str] = []
    for line in text.splitlines():
        if _LINE.match(line):
            pieces.append(line)
        elif pieces:
            pieces[-1] += "\n" + line
    return pieces


def _instructions(piece: str) -> tuple[str, ...]:
    plain = _COMMENT.sub("", piece.partition("{")[2].rpartition("}")[0])
    return tuple(part.strip() for part in plain.split(";;") if part.strip())
