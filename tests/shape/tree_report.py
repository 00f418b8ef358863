"""Prints the size and order of a tree as a table: `python tests/shape/tree_report.py [ROOT ...]`, one column a root."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from floors import FLOORS
from tree_imports import arrows, arrows_up, circles, folder_circles, folder_of, package_files

HERE = pathlib.Path(__file__).resolve().parents[2]


def measure(root: pathlib.Path) -> dict[str, int]:
    """Returns rows of the table by name: lines of source by package, arrows up between folders, circles."""
    names = ("arrows up between folders", "imports that go up", "circles of folders", "circles of files")
    rows = dict.fromkeys(names, 0)
    lines = {}
    for package in sorted(path.name for path in (root / "packages").iterdir()):
        files = package_files(root / "packages" / package / "src")
        found = arrows(files)
        up = arrows_up(found, FLOORS[package])
        lines[f"lines of {package}"] = sum(path.read_text().count("\n") for path in files.values())
        rows["arrows up between folders"] += len({(folder_of(a.importer), folder_of(a.imported)) for a in up})
        rows["imports that go up"] += len(up)
        rows["circles of folders"] += len(folder_circles(found, files))
        rows["circles of files"] += len(circles((a.importer, a.imported) for a in found))
    return {**lines, "lines of all packages": sum(lines.values()), **rows}


def main(roots: list[pathlib.Path]) -> None:
    """Writes the table as Markdown."""
    columns = [measure(root) for root in roots]
    names = list(dict.fromkeys(name for column in columns for name in column))
    names.sort(key=lambda name: (not name.startswith("lines"), name == "lines of all packages"))
    lines = [["", *(str(root.name) for root in roots)], ["---", *("---:" for _ in roots)]]
    lines += [[name, *(f"{column[name]:,}" if name in column else "–" for column in columns)] for name in names]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    main([pathlib.Path(name).resolve() for name in sys.argv[1:]] or [HERE])
