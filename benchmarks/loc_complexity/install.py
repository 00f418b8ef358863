"""Makes a generated tree importable, as pip would: files, and metadata with entry points, in one folder."""

import tomllib
from pathlib import Path

from loc_complexity.cost import Tree


def install(tree: Tree, folder: Path) -> list[str]:
    """Writes the tree and the metadata of each project in it; returns the distributions' names."""
    names = []
    for path, text in tree.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        if place.name == "pyproject.toml":
            project = tomllib.loads(text)["project"]
            names.append(project["name"])
            _write_metadata(project, folder)
    return names


def _write_metadata(project: dict, folder: Path) -> None:
    name, version = project["name"], project["version"]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    requires = "Requires-Dist: kanawa>=0.1,<0.4\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
    lines: list[str] = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
