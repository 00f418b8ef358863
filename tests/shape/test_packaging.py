"""The wheels as an installer sees them: requirements, versions, entry points, contents."""

import ast
import configparser
import email.parser
import os
import pathlib
import re
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir())
CORE_REQUIRES = {"jax", "jaxtyping", "pluggy", "importlib-metadata", "packaging"}
VENDOR = re.compile(r"^(jax-cuda|jaxlib|libtpu|.*-pjrt$|libneuronxla)")
UNASKED = {"tensorflow", "tokamax", "qwix", "flax", "torch"}
HOOKS = "kanawa.plugins"


def import_name(package: str) -> str:
    return "kanawa" if package == "core" else f"kanawa_{package.replace('-', '_')}"


class Wheel:
    """A built wheel: its files, metadata and entry points."""

    def __init__(self, package: str) -> None:
        folder = os.environ.get("KANAWA_WHEELS")
        assert folder, "run these with `nox -s shape`, which builds the wheels"
        (path,) = pathlib.Path(folder).glob(f"{import_name(package)}-*.whl")
        self.archive = zipfile.ZipFile(path)
        self.names = self.archive.namelist()
        (info,) = {name.split("/")[0] for name in self.names if ".dist-info/" in name}
        self.metadata = email.parser.Parser().parsestr(self.read(f"{info}/METADATA"))
        self.requires = [Requirement(text) for text in self.metadata.get_all("Requires-Dist", [])]
        self.entry_points = configparser.ConfigParser(delimiters=("=",))
        self.entry_points.optionxform = str
        if f"{info}/entry_points.txt" in self.names:
            self.entry_points.read_string(self.read(f"{info}/entry_points.txt"))

    def read(self, name: str) -> str:
        return self.archive.read(name).decode()

    def always(self) -> set[str]:
        """Names required without any extra."""
        return {r.name for r in self.requires if r.marker is None or r.marker.evaluate({"extra": ""})}

    def top_level_names(self, module: str) -> set[str] | None:
        """Returns what a module defines at its top, read from its text; None if it isn't there."""
        base = module.replace(".", "/")
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in self.names:
                return set(defined(ast.parse(self.read(name)).body))
        return None


def defined(body: list[ast.stmt]) -> list[str]:
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.If):
            found += defined([*node.body, *node.orelse])
    return found


@pytest.fixture(scope="module", params=PACKAGES)
def package(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def wheel(package) -> Wheel:
    return Wheel(package)


def declared(package: str) -> dict:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def test_requirements_are_exactly_those_declared(package, wheel):
    assert wheel.always() == {Requirement(text).name for text in declared(package)["dependencies"]}


def test_core_requires_five_distributions():
    assert Wheel("core").always() == CORE_REQUIRES


def test_no_vendor_wheel_and_nothing_unasked(package, wheel):
    for requirement in wheel.requires:
        assert not VENDOR.match(requirement.name), f"{requirement}: take it through jax's own extras"
    assert not wheel.always() & UNASKED
    backends = {r.name for r in wheel.requires if r.name.startswith("nvidia")}
    assert not backends & wheel.always()


def test_jax_window_is_the_same_everywhere(package, wheel):
    windows = {str(r.specifier) for r in wheel.requires if r.name == "jax"}
    assert windows == {"<0.13,>=0.10"}


def test_plugins_take_core_over_three_minors(package, wheel):
    if package == "core":
        lower_only = [r for r in wheel.requires if r.name.startswith("kanawa")]
        assert all(str(r.specifier).startswith(">=") and "," not in str(r.specifier) for r in lower_only)
        return
    (core,) = (r for r in wheel.requires if r.name == "kanawa")
    bounds = {s.operator: s.version.split(".") for s in core.specifier}
    assert int(bounds["<"][1]) == int(bounds[">="][1]) + 3
    siblings = {r.name for r in wheel.requires if r.name.startswith("kanawa")} - {"kanawa"}
    assert not siblings, "plugins meet through core only"


def test_version_is_a_final_literal_and_tops_the_changelog(package, wheel):
    source = ROOT / "packages" / package / "src" / import_name(package) / "_version.py"
    (literal,) = re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+", literal), "main carries the next final version"
    assert wheel.metadata["Version"] == literal
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == literal
    assert wheel.metadata["Requires-Python"] == ">=3.11"


def test_every_entry_point_names_something_that_exists(package, wheel):
    points = wheel.entry_points
    listed = [(group, key, value) for group in points.sections() for key, value in points[group].items()]
    assert listed, "a package without entry points is invisible"
    for group, key, value in listed:
        module, _, attribute = value.partition(":")
        # A class that moved may have moved to core.
        owner = "core" if group == "kanawa_moved" and module.split(".")[0] == import_name("core") else package
        names = (wheel if owner == package else Wheel(owner)).top_level_names(module)
        assert names is not None, f"[{group}] {key} = {value}: no such module in the wheel"
        if attribute:
            assert attribute.split(".")[0] in names, f"[{group}] {key} = {value}: no such object"
        assert module.split(".")[0] == import_name(owner)


def test_component_groups_carry_objects_and_hooks_a_module(package, wheel):
    for group in wheel.entry_points.sections():
        for key, value in wheel.entry_points[group].items():
            if group == HOOKS:
                assert value.removesuffix(":BACKEND") == f"{import_name(package)}.plugin"
                assert key == package
            elif group.startswith("kanawa."):
                assert ":" in value, f"[{group}] {key}: components are module:object"


def test_wheel_and_source_say_whose_they_are_and_on_what_terms(package, wheel):
    licence = (ROOT / "LICENSE").read_text()
    assert (ROOT / "packages" / package / "LICENSE").read_text() == licence
    (name,) = (name for name in wheel.names if name.endswith("/LICENSE"))
    assert wheel.read(name) == licence
    assert wheel.metadata["License-Expression"] == "Apache-2.0"
    assert wheel.metadata["Author"] == "The Kanawa authors"
    assert wheel.metadata["Keywords"]
    assert wheel.metadata.get_all("Classifier")
    assert not wheel.metadata.get_all("Project-URL"), "there is no home yet to point at"


def test_wheel_holds_every_source_file_and_nothing_else(package, wheel):
    folder = ROOT / "packages" / package / "src"
    expected = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    expected = {name for name in expected if "__pycache__" not in name and "/." not in f"/{name}"}
    found = {name for name in wheel.names if ".dist-info/" not in name}
    assert found == expected
    assert f"{import_name(package)}/py.typed" in found
