"""Reads from metadata who offers which plugins and components, and imports none of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kanawa.plugins.requirements import unmet_requirements

KINDS: tuple[str, ...] = (
    "layers",
    "models",
    "kernels",
    "strategies",
    "modifiers",
    "optimizers",
    "data",
    "services",
    "experiments",
    "caches",
    "schedules",
    "tokenizers",
    "gradients",
    "meshes",
    "masks",
    "remat",
)
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


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution, or None."""
    from importlib_metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


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
