"""The devices that installed plugins describe; without a description of it, the process's own machine."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Sequence

from kanawa.plugins.discovery import own_packages
from kanawa.plugins.manager import host
from kanawa.plugins.records import DeviceSpec
from kanawa.plugins.states import SKIP_VARIABLE

#: JAX's name, platform and kind of the device of a process without an accelerator.
OWN = "cpu"
_UNKNOWN_RATE = 1e9
_MEMORY_IF_UNKNOWN = 8 * 2**30


def device_specs() -> dict[str, DeviceSpec]:
    """Returns every known device by name: what plugins contribute, and `own_device` where none describes it.

    A name that several plugins describe stands for none of them; each is there as `distribution:name`.
    """
    described: defaultdict[str, dict[str, DeviceSpec]] = defaultdict(dict)
    for plugin, specs in host().collect("kanawa_device_specs"):
        for spec in specs:
            described[spec.name][plugin.partition(":")[0]] = spec
    specs_by_name = {OWN: own_device()}
    for name, by in described.items():
        # Kanawa's own come first: they are what JAX's kinds of device mean.
        claimants = sorted(by, key=lambda distribution: distribution not in own_packages())
        agree = all(by[distribution] == by[claimants[0]] for distribution in claimants)
        if agree or name == OWN:
            specs_by_name[name] = by[claimants[0]]
        if not agree:
            specs_by_name |= {f"{distribution}:{name}": by[distribution] for distribution in claimants}
            host().warn(ambiguous_device(name, claimants))
    return specs_by_name


def ambiguous_device(name: str, claimants: Sequence[str]) -> str:
    """Returns the message for a device that several distributions describe, with the ways to choose."""
    return (
        f"device {name!r} is described more than once: by {' and '.join(claimants)}; write {claimants[0]}:{name}, "
        f"or leave one out: {SKIP_VARIABLE}={claimants[-1]}"
    )


def device_spec_of_kind(device_kind: str) -> DeviceSpec | None:
    """Returns the device that JAX reports as `device_kind`, or None if no plugin describes it."""
    specs = device_specs().values()
    return next((spec for spec in specs if device_kind in spec.device_kinds), None)


def processor_name() -> str:
    """Returns the name of this machine's processor."""
    return device_specs()[OWN].model


def platform_of(jax_platform: str) -> str:
    """Returns the platform that JAX calls by another name when it lowers; any other name as it is."""
    return next((s.platform for s in device_specs().values() if s.lowered_as == jax_platform), jax_platform)


def lowered_as(platform: str) -> str:
    """Returns the name under which JAX lowers for a platform."""
    names = (spec.lowered_as for spec in device_specs().values() if spec.platform == platform)
    return next(filter(None, names), platform)


def own_device() -> DeviceSpec:
    """Returns the machine that this process runs on; memory is what the system reports, rates are placeholders."""
    return DeviceSpec(
        name=OWN,
        platform=OWN,
        family=OWN,
        device_kinds=(OWN,),
        peak_flops={"float32": _UNKNOWN_RATE},
        memory_bytes=machine_memory_bytes(),
        memory_bandwidth=_UNKNOWN_RATE,
        link_bandwidth=_UNKNOWN_RATE,
        network_bandwidth=_UNKNOWN_RATE,
        chips_per_host=1,
        link_name="memory",
        exact_float32=True,
        model=platform.processor() or platform.machine(),
        divisible=True,
        source="this machine: memory from sysconf, the other figures unknown",
    )


def machine_memory_bytes() -> int:
    """Returns the machine's memory; 8 GiB where the system doesn't report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return _MEMORY_IF_UNKNOWN
