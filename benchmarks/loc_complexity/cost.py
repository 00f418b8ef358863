"""What changed between two trees: D new definition, I existing files, C configuration, S side tables."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from loc_complexity.statements import changed, statements

#: Path to text of every file that a person writes.
Tree = Mapping[str, str]


@dataclass(frozen=True)
class Cost:
    """Statements by class. Tests don't count."""

    definition: int = 0
    existing: int = 0
    configuration: int = 0
    side_tables: int = 0

    @property
    def spread(self) -> int:
        """I + C + S: all that isn't the new idea itself."""
        return self.existing + self.configuration + self.side_tables


def cost(before: Tree, after: Tree, configuration: tuple[str, ...] = (), side_tables: tuple[str, ...] = ()) -> Cost:
    """Returns the cost of getting from one tree to the other; the globs say which files are C and which are S."""
    counts = {"definition": 0, "existing": 0, "configuration": 0, "side_tables": 0}
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path) or "/tests/" in f"/{path}":
            continue
        if any(fnmatch.fnmatch(path, glob) for glob in side_tables):
            kind = "side_tables"
        elif any(fnmatch.fnmatch(path, glob) for glob in configuration):
            kind = "configuration"
        else:
            kind = "existing" if path in before else "definition"
        if path in before and path in after:
            counts[kind] += changed(path, before[path], after[path])
        else:
            counts[kind] += len(statements(path, after.get(path, before.get(path, ""))))
    return Cost(**counts)
