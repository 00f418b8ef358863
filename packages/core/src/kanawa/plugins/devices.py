"""The devices that installed plugins describe, and core's own: this machine's processor."""

from __future__ import annotations

import os
from collections import defaultdict

from kanawa.errors import PluginError
from kanawa.plugins.manager import host
from kanawa.plugins.records import DeviceSpec

# Not measured: what a common server core does at least. A plan for `cpu` is a rough one.
_FLOPS_PER_CORE = 16e9
_MEMORY_BANDWIDTH = 20e9
_MEMORY_IF_UNKNOWN = 8 * 2**30


def device_specs() -> dict[str, DeviceSpec]:
    """Returns every known device by name: "cpu" and what plugins contribute.

    Raises PluginError if two plugins describe one name.
    """
    specs_by_name = {"cpu": cpu_spec()}
    givers = defaultdict(list, {"cpu": ["kanawa"]})
    for plugin, specs in host().collect("kanawa_device_specs"):
        for spec in specs:
            givers[spec.name].append(plugin)
            specs_by_name[spec.name] = spec
    twice = [f"{name!r} by {' and '.join(by)}" for name, by in givers.items() if len(by) > 1]
    if twice:
        message = f"devices are described more than once: {', '.join(twice)}; uninstall one"
        raise PluginError(message)
    return specs_by_name


def device_spec_of_kind(device_kind: str) -> DeviceSpec | None:
    """Returns the device that JAX reports as `device_kind`, or None if no plugin describes it."""
    specs = device_specs().values()
    return next((spec for spec in specs if device_kind in spec.device_kinds), None)


def cpu_spec(devices: int = 1) -> DeviceSpec:
    """Returns this machine as `devices` equal JAX devices, which share its memory and cores.

    Memory is what the system reports; FLOP/s and bandwidths are placeholders, not measured.
    """
    cores = os.cpu_count() or 1
    return DeviceSpec(
        name="cpu",
        platform="cpu",
        family="cpu",
        device_kinds=("cpu",),
        peak_flops={dtype: cores * _FLOPS_PER_CORE / devices for dtype in ("float32", "bfloat16")},
        memory_bytes=_machine_memory_bytes() // devices,
        memory_bandwidth=_MEMORY_BANDWIDTH / devices,
        link_bandwidth=_MEMORY_BANDWIDTH / devices,
        network_bandwidth=1e9,
        chips_per_host=devices,
        domain_chips=devices,
        link_name="memory",
        exact_float32=True,
        source="this machine: memory from sysconf, the other figures not measured",
    )


def _machine_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return _MEMORY_IF_UNKNOWN
