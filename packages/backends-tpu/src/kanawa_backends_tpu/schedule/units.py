"""Reads `*final_hlo-static-per-bundle-utilization.txt`: how many of each unit every bundle uses."""

from collections.abc import Iterable
from dataclasses import dataclass

SPILLS, FILLS = "VSTORE:SPILL", "VLOAD:FILL"
MATRIX = "MATMUL"


@dataclass(frozen=True)
class Units:
    """The units by name with how many a bundle can use, and a row of uses for each bundle."""

    capacity: dict[str, int]
    rows: tuple[tuple[int, ...], ...]

    def used(self, bundles: Iterable[int]) -> dict[str, int]:
        """Returns how often the bundles use each unit, without those that they don't."""
        sums = [0] * len(self.capacity)
        for at in bundles:
            for place, count in enumerate(self.rows[at] if at < len(self.rows) else ()):
                sums[place] += count
        return {name: total for name, total in zip(self.capacity, sums, strict=True) if total}

    def holding(self, name: str) -> frozenset[int]:
        """Returns the bundles that use a unit."""
        place = list(self.capacity).index(name) if name in self.capacity else None
        return frozenset(at for at, row in enumerate(self.rows) if place is not None and row[place])


def parse(text: str) -> Units:
    """Returns the table; raises ValueError where it has another form."""
    lines = iter(text.splitlines())
    for line in lines:
        if "CAPAC" in line:  # spelt "CAPACTIY" by libtpu 0.0.52
            break
    names = [name.strip() for name in next(lines, "").split(",") if name.strip()]
    counts = next(lines, "").split()
    if not names or len(names) != len(counts):
        message = f"{len(names)} units and {len(counts)} capacities: this isn't a table of utilization"
        raise ValueError(message)
    rows: list[tuple[int, ...]] = []
    for line in lines:
        cells = line.split()
        if rows and not (cells and cells[0].isdigit()):
            break
        if cells and cells[0].isdigit():
            rows.append(tuple(int(cell) for cell in cells))
    return Units(dict(zip(names, map(int, counts), strict=True)), tuple(rows))
