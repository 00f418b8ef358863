"""Target selectors: what `--on v5p-512` means in chips, JAX devices, hosts and slices. JAX in `local_target` alone."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass

from kanawa.errors import TargetError, did_you_mean
from kanawa.plugins import DeviceSpec, host
from kanawa.plugins.catalog import missing_packages
from kanawa.plugins.devices import ambiguous_device, device_spec_of_kind, device_specs

logger = logging.getLogger(__name__)

_SELECTOR = re.compile(r"(?P<name>(?:[a-z0-9._-]+:)?[a-z][a-z0-9_]*?)(?:-(?P<count>[0-9]+)(?:x(?P<slices>[0-9]+))?)?")
_FORM = "expected DEVICE, DEVICE-COUNT or DEVICE-COUNTxSLICES, such as cpu-8, v5p-512, v6e-256x4"
#: Ten times the largest machine there is.
_MOST_DEVICES = 1_000_000


@dataclass(frozen=True)
class Target:
    """A parsed selector; every count is the total over all slices.

    Attributes:
        selector: what was asked for, in lower case.
        chips: what MFU and cost are counted by.
        jax_devices: what meshes are made of.
        hosts: machines, thus processes.
        topology: shape of one slice, such as "4x8x8"; empty where the device has none.
    """

    selector: str
    device: DeviceSpec
    chips: int
    jax_devices: int
    hosts: int
    slices: int = 1
    topology: str = ""


def parse_target(selector: str) -> Target:
    """Returns the target that a selector such as "v5p-512" names.

    The number is the vendor's own: cores for some devices, chips for most. Without a
    number it is one chip. Raises TargetError.
    """
    text = selector.strip().lower()
    match = _SELECTOR.fullmatch(text)
    if match is None:
        message = f"target {selector!r} can't be read; {_FORM}"
        raise TargetError(message)
    device = _device(text, match["name"])
    # Compared by their digits: Python refuses to read thousands of them.
    if max(len(match["count"] or ""), len(match["slices"] or "")) > len(str(_MOST_DEVICES)):
        raise TargetError(_too_many(text))
    count = int(match["count"]) if match["count"] else device.cores_per_unit
    slices = int(match["slices"] or 1)
    if count * slices > _MOST_DEVICES:
        raise TargetError(_too_many(text))
    if count < 1 or slices < 1:
        message = f"target {text!r}: counts start at 1; {_FORM}"
        raise TargetError(message)
    if device.divisible:
        return _divided(text, device, count, slices)
    chips = _chips(text, device, count)
    return Target(
        selector=text,
        device=device,
        chips=chips * slices,
        jax_devices=chips * slices * device.jax_devices_per_chip,
        hosts=-(-chips // device.chips_per_host) * slices,
        slices=slices,
        topology=_topology(text, device, chips),
    )


def local_target() -> str | None:
    """Returns the selector of all devices of the run; None for one machine whole, or for a device without description.

    Starts JAX's backend, so a gang must have been joined before.
    """
    import jax

    devices = jax.devices()
    device, count = devices[0], len(devices)
    spec = device_spec_of_kind(device.device_kind)
    if spec is not None and spec.divisible and count == 1:
        return None
    if spec is not None:
        chips = max(1, count // spec.jax_devices_per_chip)
        # A name that another plugin claims too is written distribution:name.
        name = next(name for name, one in device_specs().items() if one == spec)
        return f"{name}-{chips * spec.cores_per_unit}"
    logger.warning(
        "no installed backend describes device %r (%s); running without its mesh rules and compiler options; "
        "`kanawa doctor` says which package would",
        device.device_kind,
        device.platform,
    )
    return None


def _too_many(text: str) -> str:
    shown = text if len(text) < 80 else f"{text[:40]}..."
    return f"target {shown!r}: at most {_MOST_DEVICES:,} devices can be planned for; {_FORM}"


def _divided(text: str, device: DeviceSpec, count: int, slices: int) -> Target:
    """Returns one machine as `count` devices; several slices of it make no sense."""
    if slices != 1:
        message = f"target {text!r}: {device.name} is one machine; use {device.name}-{count * slices}"
        raise TargetError(message)
    return Target(text, device.divided(count), chips=count, jax_devices=count, hosts=1)


def _chips(text: str, device: DeviceSpec, count: int) -> int:
    """Returns chips in one slice."""
    chips, rest = divmod(count, device.cores_per_unit)
    if rest:
        message = (
            f"target {text!r}: the number after {device.name} counts cores, "
            f"{device.cores_per_chip} a chip, and {count} is not a whole number of chips; "
            f"use {_selectors(device, _nearest(device, count / device.cores_per_unit)[:2])}"
        )
        raise TargetError(message)
    # Part of one host can be had, parts of several can't; where slices are sold by size, `_topology` decides.
    spare = chips % device.chips_per_host
    if chips > device.chips_per_host and spare and not device.topologies:
        message = (
            f"target {text!r}: {chips} chips are not a whole number of hosts, which have "
            f"{device.chips_per_host} each; use {_selectors(device, _nearest(device, chips))}"
        )
        raise TargetError(message)
    return chips


def _topology(text: str, device: DeviceSpec, chips: int) -> str:
    if not device.topologies:
        return ""
    if chips not in device.topologies:
        near = _selectors(device, sorted(_nearest(device, chips)))
        message = f"target {text!r}: no slice of {device.name} has {chips} chips; the nearest are {near}"
        raise TargetError(message)
    return device.topologies[chips]


def _nearest(device: DeviceSpec, chips: float) -> list[int]:
    """Returns numbers of chips near `chips` that can be had, nearest first: sold slices, else whole hosts."""
    if device.topologies:
        return sorted(device.topologies, key=lambda size: abs(size - chips))[:4]
    if chips < device.chips_per_host:
        return [max(1, math.floor(chips)), math.ceil(chips)]
    hosts = chips / device.chips_per_host
    return [math.floor(hosts) * device.chips_per_host, math.ceil(hosts) * device.chips_per_host]


def _selectors(device: DeviceSpec, chips: list[int]) -> str:
    return " or ".join(dict.fromkeys(f"{device.name}-{size * device.cores_per_unit}" for size in chips))


def _device(text: str, name: str) -> DeviceSpec:
    specs = device_specs()
    if name in specs:
        return specs[name]
    claimants = [key.partition(":")[0] for key in specs if key.endswith(f":{name}")]
    if claimants:
        raise TargetError(ambiguous_device(name, claimants))
    lines = [f"unknown device {name!r} in target {text!r}{did_you_mean(name, specs)}"]
    installed = host().installed()
    backends = {key.partition(":")[0] for key, _ in host().collect("kanawa_device_specs")}
    packages = ", ".join(f"{b} {installed.get(b, '')}".strip() for b in sorted(backends))
    lines.append(f"device descriptions come from: {packages or 'no installed backend package'}")
    lines += [
        f"{state.distribution} is {state.state}: {state.reason}" for state in host().plugins() if not state.state.usable
    ]
    raise TargetError("\n".join([*lines, *missing_packages(installed)]))
