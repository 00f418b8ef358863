"""The files of a plugin package, as texts by path; nothing here touches the disk but `write_package`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import Template

from kanawa._version import __version__
from kanawa.cli.scaffold.kinds import Kind, kind_called
from kanawa.cli.scaffold.names import Names
from kanawa.cli.scaffold.publisher import Publisher, publisher
from kanawa.errors import UsageError

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$distribution"
description = "A Kanawa plugin."
readme = "README.md"
requires-python = ">=3.11"
version = "0.1.0"
license = "$license"
authors = [$author]
keywords = ["kanawa", "kanawa-plugin", "jax"]
classifiers = [
  "Development Status :: 3 - Alpha",
  "Programming Language :: Python :: 3 :: Only",
  "Topic :: Scientific/Engineering :: Artificial Intelligence",
]
dependencies = [
  "kanawa$extras>=$core_floor,<$core_end",
  "jax>=0.10,<0.13",
]

$entry_points
[dependency-groups]
test = [
  "pytest>=8.3",
]

[tool.hatch.build.targets.wheel]
packages = ["src/$package"]

[tool.pytest.ini_options]
kanawa_strict = $strict
testpaths = ["tests"]
"""
_README = """\
# $distribution

A plugin for Kanawa. It offers:

$offers

```sh
pip install .
$usage
```

Its tests come from Kanawa's conformance kit, the one that Kanawa's own packages pass:

```sh
pip install pytest && python -m pytest
```

Of Kanawa it requires `kanawa$extras` alone. What core 0.N offers is removed no earlier than 0.(N+3).
"""
_CHANGELOG = """\
# Changelog

## 0.1.0 (unreleased)

- First version.
"""
_SUPPORTED_MINORS = 3


def package_files(names: Names, kind: str, by: Publisher | None = None) -> dict[str, str]:
    """Returns every file of the package: path to text."""
    chosen = kind_called(kind)
    fill, by = _filler(names), by or publisher(names.distribution)
    files = {
        "pyproject.toml": fill(
            _PYPROJECT,
            entry_points=_entry_points(names, chosen),
            extras=chosen.extras,
            strict=str(chosen.strict).lower(),
            license=by.license,
            author=by.author,
        ),
        "README.md": fill(_README, offers=_offers(names, chosen), usage=fill(chosen.usage), extras=chosen.extras),
        "CHANGELOG.md": _CHANGELOG,
        f"src/{names.package}/__init__.py": f'"""{names.class_name} for Kanawa."""\n',
        f"src/{names.package}/py.typed": "",
        "tests/test_conformance.py": fill(chosen.conformance),
    }
    return files | {f"src/{names.package}/{file}": fill(text) for file, text in chosen.sources.items()}


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
