"""`kanawa new plugin`: names, refusals, and packages whose entry points are there."""

import ast
import tomllib

import pytest
from kanawa.cli.main import main
from kanawa.cli.scaffold import KINDS
from kanawa.cli.scaffold.names import plugin_names, publisher
from kanawa.cli.scaffold.package import load_kind, package_files
from kanawa.errors import UsageError
from kanawa.plugins.kinds import CORE_KINDS

#: Groups that somebody reads: those of core's kinds, plugin modules, and kanawa-runtime's texts.
READ = {*(kind.name for kind in CORE_KINDS), "plugins", "corpora"}


@pytest.mark.parametrize("kind", KINDS)
def test_entry_points_name_what_was_written(kind):
    files = package_files(plugin_names("my-part"), kind)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    extras = "[train]" if kind in ("experiment", "model", "loss", "corpus") else ""
    assert f"kanawa{extras}>=0.1,<0.4" in project["dependencies"]
    tests = tomllib.loads(files["pyproject.toml"])["dependency-groups"]["test"]
    assert any("kernel-tools" in need for need in tests) == (kind == "kernel")
    for group, points in project["entry-points"].items():
        assert group.removeprefix("kanawa.") in READ
        for name, value in points.items():
            module, _, attribute = value.partition(":")
            tree = ast.parse(files[f"src/{module.replace('.', '/')}.py"])
            defined = {getattr(node, "name", "") for node in tree.body}
            assigned = (node for node in tree.body if isinstance(node, ast.Assign))
            defined |= {target.id for node in assigned for target in node.targets}
            assert attribute in defined or group == "kanawa.plugins"
            assert "my-part" in name
    assert all("$" not in text for text in files.values())
    ast.parse(files["tests/test_conformance.py"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My Layer", "try 'my-layer'"),
        ("2fast", "try 'fast'"),
        ("a--b", "try 'a-b'"),
        ("é", "expected small letters"),
        ("class", "a word of Python"),
        ("json", "a module of Python's standard library, so its package can't be imported; try 'my-json'"),
        ("jax", "is that of another package here; choose another, such as 'my-jax'"),
        ("kanawa", "one of Kanawa's own"),
    ],
)
def test_bad_names_are_refused_with_a_better_one(name, said):
    with pytest.raises(UsageError, match=said):
        plugin_names(name)


def test_an_existing_folder_is_left_alone(tmp_path, capsys):
    assert main(["new", "plugin", "my-layer", "--into", str(tmp_path)]) == 0
    readme = tmp_path / "my-layer" / "README.md"
    readme.write_text("mine")
    assert main(["new", "plugin", "my-layer", "--into", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert readme.read_text() == "mine"


def test_sources_of_data_have_two_names(tmp_path):
    for kind in ("data", "source"):
        assert main(["new", "plugin", f"my-{kind}", "--kind", kind, "--into", str(tmp_path)]) == 0
        assert "kanawa.data" in (tmp_path / f"my-{kind}" / "pyproject.toml").read_text()


def test_an_unknown_kind_lists_the_known(tmp_path, capsys):
    assert main(["new", "plugin", "my-layer", "--kind", "lair", "--into", str(tmp_path)]) == 2
    assert "optimizer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def project_of(by):
    return tomllib.loads(package_files(plugin_names("my-part"), "layer", by)["pyproject.toml"])["project"]


def test_a_package_says_who_publishes_it_and_how():
    project = project_of(None)
    assert project["license"] == "Apache-2.0"
    assert project["authors"] == [{"name": "The my-part authors"}]
    project = project_of(publisher("my-part", "mit or apache-2.0", 'Ada "L" Lovelace <ada@example.org>'))
    assert project["license"] == "MIT OR Apache-2.0"
    assert project["authors"] == [{"name": 'Ada "L" Lovelace', "email": "ada@example.org"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--license", "Apache"], "--license 'Apache' is no SPDX expression; write one such as Apache-2.0"),
        (["--author", "Ada <ada>"], "expected a name, or a name and an address"),
    ],
)
def test_bad_publishers_are_refused_before_anything_is_written(tmp_path, capsys, arguments, said):
    assert main(["new", "plugin", "my-part", "--into", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_no_kind_is_offered_without_somebody_who_looks_it_up():
    for kind in KINDS:
        for group in load_kind(kind).entry_points:
            assert group in READ, f"new plugin --kind {kind} writes what nobody reads"
