"""Hooks of kanawa-backends-tpu; imports kanawa.plugins and the standard library only."""

from collections.abc import Sequence
from typing import Any

from kanawa.plugins import DeviceSpec, Finding, MeshRule, hookimpl


@hookimpl
def kanawa_device_specs() -> Sequence[DeviceSpec]:
    """Returns the TPU generations v4 to v7x."""
    from kanawa_backends_tpu.device import DEVICES

    return DEVICES


@hookimpl
def kanawa_mesh_rules() -> Sequence[MeshRule]:
    """Returns the mesh rules for TPU slices."""
    from kanawa_backends_tpu.mesh_rules import RULES

    return RULES


@hookimpl
def kanawa_compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any] | None:
    """Returns XLA options for a TPU; None for any other device."""
    if device.platform != "tpu":
        return None
    from kanawa_backends_tpu.compiler import compiler_options

    return compiler_options(device, purpose)


@hookimpl
def kanawa_topology(target: Any) -> list[Any] | None:
    """Returns compile-only devices for a TPU target; None for any other."""
    if target.device.platform != "tpu":
        return None
    from kanawa_backends_tpu.topology import topology

    return topology(target)


@hookimpl
def kanawa_doctor() -> Sequence[Finding]:
    """Returns whether TPU targets can be compiled here."""
    from kanawa_backends_tpu.doctor import findings

    return findings()
