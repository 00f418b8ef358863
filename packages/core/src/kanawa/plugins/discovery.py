"""Reads from metadata which distributions offer which plugins and components; imports none of them."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement

CORE = "kanawa"
PLUGIN_KIND = "plugins"
_ONLY_IN_EXTRA = re.compile(r"""^[^;]*;\s*extra\s*==\s*['"][\w.-]+['"]\s*$""")
_OF_AN_EXTRA = re.compile(rf"""(?P<name>{CORE}[-_.][\w.-]+).*;.*\bextra\s*==\s*['"](?P<extra>[\w.-]+)['"]""")
_NUMBERS = re.compile(r"\d+(\.\d+)*")
_CLAUSE = re.compile(r"(>=|<=|>|<)\s*(\d+(?:\.\d+)*)")
_PLAIN = re.compile(rf"(?P<name>[\w.-]+)\s*(?P<clauses>({_CLAUSE.pattern}(\s*,\s*{_CLAUSE.pattern})*)?)\s*")
_COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
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
        if "[kanawa." in (candidate.read_text("entry_points.txt") or "") and (own := _header(candidate, "Name")):
            names.add(normalise(own[0]))
    providers = []
    versions = functools.cache(installed_version)  # siblings require the same few, and each costs a parse
    for name in sorted(names):
        first = distribution(name)  # the one that an import would find, should there be several
        entries = _entries(first.entry_points)
        if entries:
            unmet = unmet_requirements(_header(first, "Requires-Dist") or first.requires or (), versions)
            version = next(iter(_header(first, "Version")), "")
            providers.append(Provider(name=name, version=version, entries=entries, unmet=tuple(unmet)))
    return providers


def _header(distribution: Any, field: str) -> list[str]:
    """Returns the values of one field of a distribution's metadata."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    # importlib_metadata parses the file as an e-mail, with the whole README in its body, each time that it is asked for
    # a name, a version or the requirements: with seven packages a third of what composing takes.
    head, prefix = text.replace("\r\n", "\n").partition("\n\n")[0], f"{field}:".lower()
    return [line.partition(":")[2].strip() for line in head.split("\n") if line.lower().startswith(prefix)]


@functools.cache
def packages_by_extra() -> dict[str, tuple[str, ...]]:
    """Returns core's extras and the packages of ours that each brings: core's own metadata is the one list of them."""
    from importlib_metadata import PackageNotFoundError, distribution

    try:
        required = _header(distribution(CORE), "Requires-Dist")
    except PackageNotFoundError:  # run from a source tree that isn't installed
        return {}
    extras: dict[str, list[str]] = {}
    for match in filter(None, map(_OF_AN_EXTRA.match, required)):
        extras.setdefault(match["extra"], []).append(normalise(match["name"]))
    # A package with an extra of its own name is installed by that one, though others bring it too.
    own = {f"{CORE}-{extra}": extra for extra in extras}
    brought = {extra: tuple(n for n in names if own.get(n, extra) == extra) for extra, names in extras.items()}
    # The extra that brings most comes first; metadata has them in alphabetical order.
    return dict(sorted(brought.items(), key=lambda item: -len(item[1])))


@functools.cache
def own_packages() -> frozenset[str]:
    """Returns the names of core and of the packages that its extras bring."""
    return frozenset({CORE}.union(*packages_by_extra().values()))


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution, or None."""
    from importlib_metadata import PackageNotFoundError, distribution

    try:
        return next(iter(_header(distribution(name), "Version")), None)
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
        version_of: returns the installed version of a distribution, or None.
    """
    problems = []
    for text in requires:
        # Most belong to an extra or are met in the plainest way, and then `packaging` isn't even imported: that alone
        # took a quarter of what every command needs to start.
        if _ONLY_IN_EXTRA.search(text) or _plainly_met(text, version_of):
            continue
        from packaging.requirements import InvalidRequirement, Requirement

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


def _plainly_met(text: str, version_of: Callable[[str], str | None]) -> bool:
    """Returns whether a requirement like "jax>=0.10,<0.12" is met by a version of numbers alone; False where unsure."""
    match = _PLAIN.fullmatch(text)
    installed = version_of(match["name"]) if match else None
    if match is None or installed is None or _NUMBERS.fullmatch(installed) is None:
        return False
    for clause in filter(None, match["clauses"].split(",")):
        compare, number = _CLAUSE.fullmatch(clause.strip()).groups()  # type: ignore[union-attr]
        if not _COMPARED[compare](*_aligned(installed, number)):
            return False
    return True


def _aligned(first: str, second: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the numbers of two versions, as many of each: 0.10 is 0.10.0 (PEP 440)."""
    a, b = (tuple(map(int, text.split("."))) for text in (first, second))
    length = max(len(a), len(b))
    return a + (0,) * (length - len(a)), b + (0,) * (length - len(b))


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
