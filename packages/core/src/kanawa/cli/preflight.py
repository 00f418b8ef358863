"""What core itself checks before a run: versions, hardware that goes unused, flags."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kanawa.plugins import Finding, host
from kanawa.plugins.catalog import missing_packages
from kanawa.plugins.devices import OWN, device_specs
from kanawa.plugins.discovery import installed_version, release

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

#: PCI classes of what computes and draws nothing: 3D controllers, processing accelerators.
_PCI_CLASSES = ("0x0302", "0x1200")
_PYTHONS = ((3, 11), (3, 14))


def findings() -> list[Finding]:
    """Returns what core's own checks found; touches no device and imports no JAX."""
    return [
        check_python(sys.version_info[:2]),
        check_jax(installed_version),
        check_platforms(os.environ, pci_accelerators(), _jax_plugins(), _platforms()),
        *check_xla_flags(os.environ),
    ]


def check_python(version: tuple[int, ...]) -> Finding:
    """Returns whether this Python is one that we test."""
    text = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    if _PYTHONS[0] <= version < _PYTHONS[1]:
        return Finding("ok", "python", text)
    meaning = "it may work: it was never tried"
    return Finding("warning", "python", f"{text} is not tested", "use Python 3.11, 3.12 or 3.13", meaning)


def check_jax(version_of: Callable[[str], str | None]) -> Finding:
    """Returns whether jax and jaxlib are there and fit each other and core."""
    jax, jaxlib = version_of("jax"), version_of("jaxlib")
    wanted = _wanted("jax")
    if jax is None or jaxlib is None:
        message = f"jax {jax or 'missing'}, jaxlib {jaxlib or 'missing'}"
        return Finding("error", "jax", message, f'pip install "jax{wanted}"', "nothing can be compiled or run")
    message = f"jax {jax}, jaxlib {jaxlib}"
    if release(jaxlib) > release(jax):
        return Finding("error", "jax", f"{message}: jaxlib is newer", f"pip install jaxlib=={jax}")
    if release(jax)[:2] != release(jaxlib)[:2]:
        fix = f"pip install jaxlib=={jax}"
        return Finding("error", "jax", f"{message}: they don't fit each other", fix)
    if not wanted.contains(jax, prereleases=True):
        return Finding("error", "jax", f"{message} is outside our range", f'pip install "jax{wanted}"')
    return Finding("ok", "jax", message)


def _wanted(name: str) -> SpecifierSet:
    """Returns the versions of a distribution that core's metadata ask for; any where core isn't installed."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    try:
        declared = [Requirement(text) for text in requires("kanawa") or ()]
    except PackageNotFoundError:
        declared = []
    return next((requirement.specifier for requirement in declared if requirement.name == name), SpecifierSet())


def pci_accelerators(folder: Path = Path("/sys/bus/pci/devices")) -> int:
    """Returns how many accelerators the PCI bus shows; 0 where it can't be read."""
    classes = (path.read_text(encoding="ascii", errors="replace") for path in folder.glob("*/class"))
    try:
        return sum(text.startswith(_PCI_CLASSES) for text in classes)
    except OSError:
        return 0


def _jax_plugins() -> list[str]:
    return sorted(point.name for point in entry_points(group="jax_plugins"))


def _platforms() -> set[str]:
    """Returns the platforms of accelerators that installed backends describe; each has a preflight of its own."""
    return {spec.platform for spec in device_specs().values()} - {OWN}


def check_platforms(
    environment: Mapping[str, str], accelerators: int, plugins: Collection[str], described: Collection[str]
) -> Finding:
    """Returns which platforms JAX will try, and whether there are accelerators that no backend is installed for."""
    chosen = environment.get("JAX_PLATFORMS") or ", ".join([*plugins, "the processor"])
    message = f"JAX will try: {chosen}"
    if not accelerators or plugins or described:
        return Finding("ok", "platform", message)
    return Finding(
        "error",
        "platform",
        f"{message}; {accelerators} accelerators are on the PCI bus, and JAX has no plugin for any",
        f"install the backend of yours: {'; '.join(missing_packages(host().installed()))}",
        "a run would be right, and a hundred times slower than what is paid for",
    )


def check_xla_flags(environment: Mapping[str, str]) -> list[Finding]:
    """Returns what is odd about XLA_FLAGS: what is no flag, or is set twice to different values."""
    flags = environment.get("XLA_FLAGS", "").split()
    values: dict[str, str] = {}
    oddities = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if not name.startswith("--"):
            fix = "every flag starts with --xla_"
            oddities.append(Finding("error", "XLA_FLAGS", f"{flag!r} is not a flag", fix))
        elif values.setdefault(name, value) != value:
            message = f"{name} is both {values[name]!r} and {value!r}; the last one wins"
            oddities.append(Finding("warning", "XLA_FLAGS", message, "keep one"))
            values[name] = value
    return oddities or [Finding("ok", "XLA_FLAGS", " ".join(flags) or "not set")]


def plugin_findings() -> list[Finding]:
    """Returns the state of each plugin, and of each component that can't be used."""
    states_told = []
    for state in (*host().plugins(), *(component for component in host().components() if component.state.bad)):
        level: Literal["ok", "error"] = "error" if state.state.bad else "ok"
        message = f"{state.distribution} {state.version} is {state.state}"
        if state.reason:
            message += f": {state.reason}"
        states_told.append(Finding(level, f"{state.label} {state.name}", message))
    return states_told or [Finding("warning", "plugins", "none", 'pip install "kanawa[train]"')]
