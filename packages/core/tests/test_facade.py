"""The facade: every name it promises exists, and type checkers see the same names."""

import ast
import inspect
import pathlib
import pkgutil
from importlib import import_module
from types import ModuleType

import kanawa as kn
import pytest


def test_every_promised_name_resolves():
    missing = []
    for name in kn.__all__:
        try:
            getattr(kn, name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert not missing


def test_type_checkers_see_what_is_promised():
    tree = ast.parse(pathlib.Path(kn.__file__).with_suffix(".pyi").read_text())
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    aliases = [(n.module, a) for n in imports for a in n.names]
    assert sorted(a.name for _, a in aliases) == kn.__all__
    for module, alias in aliases:
        assert alias.asname == alias.name, "a stub exports only what it imports under its own name"
        found = getattr(import_module(module), alias.name)
        assert found is getattr(kn, alias.name) or alias.name == "kernels"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'kanawa' has no attribute 'Modul'"):
        kn.Modul  # noqa: B018


def test_no_package_is_also_a_function_but_those_that_can_be_called():
    """A subpackage is an attribute of its parent: were a call named like it, the last import would win."""
    names = [package.name for package in pkgutil.walk_packages(kn.__path__, "kanawa.") if package.ispkg]
    assert "kanawa.kernels.attention" in names
    for name in names:
        parent, _, child = name.rpartition(".")
        package = import_module(name)
        assert getattr(import_module(parent), child) is package, name
        assert type(package) is ModuleType or (callable(package) and name == "kanawa.kernels"), name


def test_compose_is_a_function():
    assert inspect.isfunction(kn.compose)
    with pytest.raises(kn.KanawaError, match="no experiment, model or folder is called 'nowhere'"):
        kn.compose("nowhere")
