"""The files of a plugin package, as texts by path, made from the templates of a kind; `write_package` writes them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from kanawa._version import __version__
from kanawa.cli.scaffold.names import Names, Publisher, publisher
from kanawa.errors import UsageError

_SUPPORTED_MINORS = 3
_TEMPLATES = files("kanawa.cli.scaffold") / "templates"
_SUFFIX = ".txt"


@dataclass(frozen=True)
class Kind:
    """Templates of one kind; `$distribution`, `$package` and `$class_name` are filled in.

    Attributes:
        texts: file to its text; `test_conformance.py` belongs under tests, the others under the package.
        entry_points: group, without "kanawa.", to {name: "module:object" under the package}.
        usage: the README's shell example.
        extras: of kanawa, such as "[train]", where the package needs more than core.
        test_requires: distributions that its tests need beside pytest.
        strict: whether its tests run in strict JAX.
    """

    texts: dict[str, str]
    entry_points: dict[str, dict[str, str]]
    usage: str
    extras: str = ""
    test_requires: tuple[str, ...] = ()
    strict: bool = True


def load_kind(name: str) -> Kind:
    """Returns a kind of `scaffold.KINDS`."""
    settings = tomllib.loads((_TEMPLATES / name / "kind.toml").read_text(encoding="utf-8"))
    return Kind(texts=load_texts(name), **settings)


def load_texts(folder: str) -> dict[str, str]:
    """Returns the texts of a folder of templates, by the name of the file that each becomes."""
    found = sorted((_TEMPLATES / folder).iterdir(), key=lambda file: file.name)
    texts = (file for file in found if file.name.endswith(_SUFFIX))
    return {file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8") for file in texts}


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
