"""What core itself checks before a run: versions, hardware that goes unused, flags."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from glob import glob
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING, Literal

from kanawa.plugins import ComponentState, Finding, PluginState, host
from kanawa.plugins.discovery import installed_version, release

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

# JAX platform to: signs of the hardware, a distribution of its JAX plugin, what installs it.
_HARDWARE = {
    "gpu": (("/dev/nvidia[0-9]*",), ("jax-cuda12-pjrt", "jax-cuda13-pjrt"), "gpu"),
    "tpu": (("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"), ("libtpu",), "tpu"),
    "neuron": (("/dev/neuron[0-9]*",), ("libneuronxla",), "neuron"),
}
_PYTHONS = ((3, 11), (3, 14))


def findings() -> list[Finding]:
    """Returns what core's own checks found; touches no device and imports no JAX."""
    checks: tuple[Callable[[], Iterable[Finding]], ...] = (
        lambda: [check_python(sys.version_info[:2])],
        lambda: [check_jax(installed_version)],
        lambda: check_platforms(found_hardware(), installed_version, os.environ),
        lambda: check_xla_flags(os.environ),
    )
    return [finding for check in checks for finding in check()]


def check_python(version: tuple[int, ...]) -> Finding:
    """Returns whether this Python is one that we test."""
    text = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    if _PYTHONS[0] <= version < _PYTHONS[1]:
        return Finding("ok", "python", text)
    meaning = "it may work; nobody has tried"
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
    """Returns the versions of a distribution that core's own metadata ask for; any, where nobody installed it."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    try:
        declared = [Requirement(text) for text in requires("kanawa") or ()]
    except PackageNotFoundError:
        declared = []
    return next((requirement.specifier for requirement in declared if requirement.name == name), SpecifierSet())


def found_hardware() -> dict[str, str]:
    """Returns platform to the sign of its hardware on this machine."""
    sign_of = {}
    for name, (patterns, _, _) in _HARDWARE.items():
        signs = sorted(path for pattern in patterns for path in glob(pattern))
        if signs:
            sign_of[name] = signs[0]
    if "gpu" not in sign_of and shutil.which("nvidia-smi"):
        sign_of["gpu"] = "nvidia-smi"
    return sign_of


def check_platforms(
    hardware: Mapping[str, str],
    version_of: Callable[[str], str | None],
    environment: Mapping[str, str],
) -> list[Finding]:
    """Returns which platform JAX will choose, and whether it is the CPU by accident."""
    forced = environment.get("JAX_PLATFORMS", "")
    usable = [
        name
        for name, (_, wheels, _) in _HARDWARE.items()
        if name in hardware and any(version_of(wheel) for wheel in wheels)
    ]
    chosen = forced or ",".join([*usable, "cpu"])
    findings_so_far = [Finding("ok", "platform", f"JAX will try: {chosen}")]
    for name, sign in hardware.items():
        _, wheels, extra = _HARDWARE[name]
        if name not in usable:
            message = f"{sign} is here but no JAX plugin for it: runs would use the CPU by accident"
            fix = f'pip install "kanawa[{extra}]"'
            meaning = "a run would be right, and a hundred times slower than what is paid for"
            findings_so_far.append(Finding("error", name, message, fix, meaning))
        elif forced and not _asks_for(forced, name):
            message = f"{sign} is here but JAX_PLATFORMS={forced} leaves it out"
            meaning = "runs started from here don't use it"
            findings_so_far.append(Finding("warning", name, message, "unset JAX_PLATFORMS", meaning))
        else:
            findings_so_far.append(Finding("ok", name, f"{sign} is here, and so is its JAX plugin"))
    return findings_so_far


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
    states: list[PluginState | ComponentState] = list(host().plugins())
    states += [component for component in host().components() if component.state.bad]
    for state in states:
        level: Literal["ok", "error"] = "error" if state.state.bad else "ok"
        message = f"{state.distribution} {state.version} is {state.state}"
        if state.reason:
            message += f": {state.reason}"
        states_told.append(Finding(level, f"{state.label} {state.name}", message))
    return states_told or [Finding("warning", "plugins", "none", 'pip install "kanawa[train]"')]


def _asks_for(forced: str, name: str) -> bool:
    names = {"gpu": {"gpu", "cuda"}}.get(name, {name})
    return bool(names & set(forced.split(",")))
