"""Reads from metadata who offers which plugins and components, and imports none of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

CORE = "kanawa"
PLUGIN_KIND = "plugins"
_GROUP = re.compile(r"kanawa\.([a-z][a-z0-9_]*)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry point: `kind` is the group without its prefix."""

    kind: str
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A distribution that offers something; `unmet` says which of its requirements don't hold."""

    name: str
    version: str
    entries: tuple[Entry, ...]
    unmet: tuple[str, ...] = field(default=())


def discover() -> list[Provider]:
    """Returns every installed distribution with an entry point in a `kanawa.` group, by name.

    Only the distributions concerned are parsed: reading all metadata takes most of a second.
    """
    from importlib_metadata import distribution, distributions

    names = set()
    for candidate in distributions():
        # A search in the text, before any parsing; most distributions of an environment have nothing of ours.
        if "[kanawa." in (candidate.read_text("entry_points.txt") or "") and candidate.name:
            names.add(normalise(candidate.name))
    providers = []
    versions = functools.cache(installed_version)  # siblings require the same few, and each costs a parse
    for name in sorted(names):
        first = distribution(name)  # the one that an import would find, should there be several
        entries = _entries(first.entry_points)
        if entries:
            unmet = unmet_requirements(first.requires or (), versions)
            providers.append(Provider(name=name, version=first.version, entries=entries, unmet=tuple(unmet)))
    return providers


@functools.cache
def packages_by_extra() -> dict[str, tuple[str, ...]]:
    """Returns core's extras and the packages of ours that each brings: core's own metadata is the one list of them."""
    from importlib_metadata import PackageNotFoundError, requires
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in requires(CORE) or ()]
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        name, marker = normalise(requirement.name), requirement.marker
        extra = re.search(r"extra == .([\w-]+).", str(marker))
        if extra and name.startswith(f"{CORE}-"):
            extras.setdefault(extra[1], []).append(name)
    # The extra that brings most comes first; metadata has them in alphabetical order.
    return {extra: tuple(names) for extra, names in sorted(extras.items(), key=lambda item: -len(item[1]))}


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution, or None."""
    from importlib_metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def release_of(name: str) -> tuple[int, ...]:
    """Returns the leading numbers of an installed distribution's version, (0, 10, 2); empty where there is none."""
    return release(installed_version(name) or "")


def release(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, three at most."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def normalise(name: str) -> str:
    """Returns a distribution name in the one spelling used for comparing (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(entry_points: Iterable[object]) -> tuple[Entry, ...]:
    """Returns our entries, each once, in a fixed order."""
    entries = set()
    for point in entry_points:
        group = _GROUP.fullmatch(getattr(point, "group", ""))
        if group:
            name, value = getattr(point, "name", ""), getattr(point, "value", "")
            entries.add((group[1], name, value))
    return tuple(Entry(kind=kind, name=name, value=value) for kind, name, value in sorted(entries))


def unmet_requirements(requires: Iterable[str], version_of: Callable[[str], str | None]) -> list[str]:
    """Returns one sentence for each requirement that holds without extras and is not met.

    Args:
        requires: `Requires-Dist` values.
        version_of: gives the installed version of a distribution, or None.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    problems = []
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            problems.append(f"its requirement {text!r} can't be read ({error})".replace("\n", " "))
            continue
        # An empty extra: requirements of extras are optional, and those of other platforms don't hold here.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        problem = _problem(requirement, version_of)
        if problem:
            problems.append(problem)
    return problems


def _problem(requirement: Requirement, version_of: Callable[[str], str | None]) -> str:
    """Returns what is wrong with one requirement, or an empty string."""
    wanted = f"{requirement.name}{requirement.specifier}"
    installed = version_of(requirement.name)
    if installed is None:
        return f"needs {wanted}, which is not installed"
    # pip leaves prereleases out when choosing; what is installed was chosen.
    if not requirement.specifier.contains(installed, prereleases=True):
        return f"needs {wanted}, found {installed}"
    return ""
