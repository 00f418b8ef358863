"""What strangers could change between two installations is named by its digest: servers' libraries, CI's actions."""

import pathlib
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCK = ROOT / "packages" / "runtime" / "serve.lock"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: A server's host has these packages, with these extras.
SERVED = {"core": (), "layers": (), "runtime": ("serve", "hf")}


def locked():
    """The lock's versions by name, and its entries that have no hash."""
    versions, bare = {}, []
    for entry in re.split(r"\n(?=\S)", LOCK.read_text().strip()):
        name, version = re.match(r"([\w.\-]+)(?:\[[\w,]+\])?==([\w.]+)", entry).groups()
        versions.setdefault(canonicalize_name(name), []).append(version)
        if "--hash=sha256:" not in entry:
            bare.append(name)
    return versions, bare


@pytest.mark.parametrize("package", SERVED)
def test_the_servers_lock_satisfies_what_the_package_requires(package):
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(r for extra in SERVED[package] for r in project["optional-dependencies"][extra]),
    ]
    versions, bare = locked()
    assert not bare
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if name.startswith("kanawa"):
            continue
        found = versions.get(name)
        assert found, f"{LOCK.name} has no {name}: run `nox -s lock`"
        assert all(version in requirement.specifier for version in found), f"{name}: run `nox -s lock`"


def unpinned(text):
    """The actions of a workflow that a tag names, which may be moved."""
    return [used for used in re.findall(r"uses:\s*(\S+)", text) if not re.search(r"@[0-9a-f]{40}$", used)]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_digest(workflow):
    assert not unpinned(workflow.read_text())


def test_an_action_by_its_tag_is_seen():
    assert unpinned("      - uses: actions/checkout@v4\n") == ["actions/checkout@v4"]
