"""The kinds of plugin that can be generated: each one file of templates in this folder."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Kind:
    """Templates of one kind; `$distribution`, `$package` and `$class_name` are filled in.

    Attributes:
        sources: file under the package to its text.
        entry_points: group, without "kanawa.", to {name: "module:object" under the package}.
        conformance: text of tests/test_conformance.py.
        usage: the README's shell example.
        extras: of kanawa, such as "[train]", where the package needs more than core.
        strict: whether its tests run in strict JAX, which optax, and so training, doesn't pass.
    """

    sources: dict[str, str]
    entry_points: dict[str, dict[str, str]]
    conformance: str
    usage: str
    extras: str = ""
    strict: bool = True


NAMES = ("layer", "modifier", "kernel", "optimizer", "data", "service", "experiment")


def kind_called(name: str) -> Kind:
    """Returns a kind of NAMES."""
    kind: Kind = import_module(f"kanawa.cli.scaffold.{name}_kind").KIND
    return kind
