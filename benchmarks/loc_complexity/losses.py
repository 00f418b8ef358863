"""Where a feature is no constant for us: real patches to our own files, counted by the same instrument.

A patch holds whole files (`diff -U100000`), so it counts the same whatever the tree has become since.
"""

from pathlib import Path

from loc_complexity.cost import Cost, cost

PATCHES = Path(__file__).parent / "patches"


def both_sides(patch: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the files before and after a patch with full context."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    path = ""
    for line in patch.splitlines():
        if line.startswith("+++ "):
            path = line[4:].split("\t")[0].partition("/")[2]
            before[path], after[path] = [], []
        elif path and line[:1] in (" ", "-", "+") and not line.startswith("--- "):
            if line[0] != "+":
                before[path].append(line[1:])
            if line[0] != "-":
                after[path].append(line[1:])
    return tuple({p: "\n".join(lines) for p, lines in side.items()} for side in (before, after))


def losses() -> dict[str, tuple[Cost, int]]:
    """Returns each patch's cost and how many files it opens."""
    found = {}
    for place in sorted(PATCHES.glob("*.patch")):
        before, after = both_sides(place.read_text(encoding="utf-8"))
        found[place.stem] = cost(before, after), len(before)
    return found
