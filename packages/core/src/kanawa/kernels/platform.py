"""Which platform and device a program is built for: the plan says, else the mesh or the process."""

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from kanawa.plugins import DeviceSpec

#: JAX's own platform names that differ from ours.
_NAMES = {"cuda": "gpu", "rocm": "gpu"}


def current_platform() -> tuple[str, str | None]:
    """Returns (platform, device_kind) of the program being traced; the kind is None if unknown.

    A mesh of compile-only topology devices counts like real ones.
    """
    from kanawa.arrays.plan import current_plan

    plan = current_plan()
    if plan.platform is not None:
        return plan.platform, plan.device_kind
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    if device is not None:
        platform = getattr(device, "platform", None) or _platform_of_kind(device.device_kind)
        return _NAMES.get(platform, platform), device.device_kind
    backend = jax.default_backend()
    return _NAMES.get(backend, backend), jax.devices()[0].device_kind


def device_spec(host: Any, device_kind: str | None) -> "DeviceSpec | None":
    """Returns the installed DeviceSpec for a JAX `device_kind`, or None."""
    if device_kind is None:
        return None
    for _, specs in host.collect("kanawa_device_specs"):
        for spec in specs:
            if device_kind in spec.device_kinds:
                return spec
    return None


def _platform_of_kind(kind: str) -> str:
    """Returns the platform for older JAX versions whose abstract devices don't say it."""
    lowered = kind.lower()
    for mark, platform in (("tpu", "tpu"), ("nvidia", "gpu"), ("amd", "gpu"), ("neuron", "neuron")):
        if mark in lowered:
            return platform
    return "cpu" if lowered == "cpu" else jax.default_backend()
