"""Hooks of kanawa-backends-gpu; imports kanawa.plugins and the standard library only."""

from collections.abc import Sequence
from typing import Any

from kanawa.plugins import DeviceSpec, Finding, MeshRule, hookimpl


@hookimpl
def kanawa_device_specs() -> Sequence[DeviceSpec]:
    """Returns the GPUs A100 to B200."""
    from kanawa_backends_gpu.device import DEVICES

    return DEVICES


@hookimpl
def kanawa_mesh_rules() -> Sequence[MeshRule]:
    """Returns the mesh rules for GPUs."""
    from kanawa_backends_gpu.mesh_rules import RULES

    return RULES


@hookimpl
def kanawa_compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any] | None:
    """Returns XLA options for a GPU; None for any other device."""
    if device.platform != "gpu":
        return None
    from kanawa_backends_gpu.compiler import compiler_options

    return compiler_options(device, purpose)


@hookimpl
def kanawa_topology(target: Any) -> list[Any] | None:
    """Returns compile-only devices for a GPU target; None for any other."""
    if target.device.platform != "gpu":
        return None
    from kanawa_backends_gpu.topology import topology

    return topology(target)


@hookimpl
def kanawa_doctor() -> Sequence[Finding]:
    """Returns whether GPU targets can be compiled here."""
    from kanawa_backends_gpu.doctor import findings

    return findings()
