"""Hooks of sashimono-backends-gpu; imports sashimono.plugins and the standard library only."""

from collections.abc import Sequence
from typing import Any

from sashimono.plugins import DeviceSpec, Finding, MeshRule, hookimpl


@hookimpl
def sashimono_device_specs() -> Sequence[DeviceSpec]:
    """Returns the GPUs A100 to B200."""
    from sashimono_backends_gpu.device import DEVICES

    return DEVICES


@hookimpl
def sashimono_mesh_rules() -> Sequence[MeshRule]:
    """Returns the mesh rules for GPUs."""
    from sashimono_backends_gpu.mesh_rules import RULES

    return RULES


@hookimpl
def sashimono_compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any] | None:
    """Returns XLA options for a GPU; None for any other device."""
    if device.platform != "gpu":
        return None
    from sashimono_backends_gpu.compiler import compiler_options

    return compiler_options(device, purpose)


@hookimpl
def sashimono_topology(target: Any) -> list[Any] | None:
    """Returns compile-only devices for a GPU target; None for any other."""
    if target.device.platform != "gpu":
        return None
    from sashimono_backends_gpu.topology import topology

    return topology(target)


@hookimpl
def sashimono_doctor() -> Sequence[Finding]:
    """Returns whether GPU targets can be compiled here."""
    from sashimono_backends_gpu.doctor import findings

    return findings()
