"""The files of a plugin package, as texts by path; nothing here touches the disk but `write_package`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import Template

from kanawa._version import __version__
from kanawa.cli.scaffold.kinds import Kind, load_kind, load_texts
from kanawa.cli.scaffold.names import Names
from kanawa.cli.scaffold.publisher import Publisher, publisher
from kanawa.errors import UsageError

_SUPPORTED_MINORS = 3


def package_files(names: Names, kind: str, by: Publisher | None = None) -> dict[str, str]:
    """Returns every file of the package: path to text."""
    chosen = load_kind(kind)
    fill, by = _filler(names), by or publisher(names.distribution)
    values = {
        "entry_points": _entry_points(names, chosen),
        "offers": _offers(names, chosen),
        "usage": fill(chosen.usage),
        "extras": chosen.extras,
        "test_requires": "".join(f'  "{name}",\n' for name in chosen.test_requires),
        "test_packages": "".join(f" {name}" for name in chosen.test_requires),
        "strict": str(chosen.strict).lower(),
        "license": by.license,
        "author": by.author,
    }
    package = f"src/{names.package}"
    return {
        **{file: fill(text, **values) for file, text in load_texts("package").items()},
        f"{package}/__init__.py": f'"""{names.class_name} for Kanawa."""\n',
        f"{package}/py.typed": "",
        **{
            f"{'tests' if file == 'test_conformance.py' else package}/{file}": fill(text)
            for file, text in chosen.texts.items()
        },
    }


def write_package(names: Names, kind: str, into: Path, by: Publisher | None = None) -> list[Path]:
    """Writes the package into a new folder of `into`; raises UsageError, and writes nothing, where it exists."""
    root = into / names.distribution
    if root.exists():
        message = f"{root} exists already; choose another name, another --into, or remove it first"
        raise UsageError(message)
    written = []
    for path, text in package_files(names, kind, by).items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        written.append(place)
    return written


def _filler(names: Names) -> Callable[..., str]:
    major, minor = (int(part) for part in __version__.split(".")[:2])
    values = {
        "distribution": names.distribution,
        "package": names.package,
        "class_name": names.class_name,
        "core_floor": f"{major}.{minor}",
        "core_end": f"{major}.{minor + _SUPPORTED_MINORS}",
    }

    def fill(text: str, **more: str) -> str:
        return Template(text).substitute(values | more)

    return fill


def _entry_points(names: Names, kind: Kind) -> str:
    fill, lines = _filler(names), []
    for group, points in kind.entry_points.items():
        lines.append(f'[project.entry-points."kanawa.{group}"]')
        lines += [f'"{fill(name)}" = "{names.package}.{fill(value)}"' for name, value in points.items()]
        lines.append("")
    return "\n".join(lines)


def _offers(names: Names, kind: Kind) -> str:
    fill = _filler(names)
    rows = [f"| {group} | `{fill(name)}` |" for group, points in kind.entry_points.items() for name in points]
    return "\n".join(["| kind | name |", "|---|---|", *rows])
