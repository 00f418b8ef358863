"""The kinds of plugin that can be generated: each a folder of `templates`, read when it is asked for."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

_TEMPLATES = files("kanawa.cli.scaffold") / "templates"
_SUFFIX = ".txt"
NAMES = ("layer", "modifier", "kernel", "optimizer", "data", "service", "experiment")


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
    """Returns a kind of NAMES."""
    settings = tomllib.loads((_TEMPLATES / name / "kind.toml").read_text(encoding="utf-8"))
    return Kind(texts=load_texts(name), **settings)


def load_texts(folder: str) -> dict[str, str]:
    """Returns the texts of a folder of templates, by the name of the file that each becomes."""
    found = sorted((_TEMPLATES / folder).iterdir(), key=lambda file: file.name)
    texts = (file for file in found if file.name.endswith(_SUFFIX))
    return {file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8") for file in texts}
