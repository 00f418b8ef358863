"""Hooks of kanawa-backends-neuron; imports kanawa.plugins and the standard library only."""

from collections.abc import Sequence
from typing import Any

from kanawa.plugins import DeviceSpec, Finding, MeshRule, hookimpl


@hookimpl
def kanawa_device_specs() -> Sequence[DeviceSpec]:
    """Returns Trainium and Trainium2."""
    from kanawa_backends_neuron.device import DEVICES

    return DEVICES


@hookimpl
def kanawa_mesh_rules() -> Sequence[MeshRule]:
    """Returns the mesh rules for Trainium."""
    from kanawa_backends_neuron.mesh_rules import RULES

    return RULES


@hookimpl
def kanawa_compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any] | None:
    """Returns XLA options for Trainium; None for any other device."""
    if device.platform != "neuron":
        return None
    from kanawa_backends_neuron.compiler import compiler_options

    return compiler_options()


@hookimpl
def kanawa_topology(target: Any) -> list[Any] | None:
    """Returns compile-only devices for a Trainium target; None for any other."""
    if target.device.platform != "neuron":
        return None
    from kanawa_backends_neuron.topology import topology

    return topology(target)


@hookimpl
def kanawa_doctor() -> Sequence[Finding]:
    """Returns whether a Trainium chip here would be used."""
    from kanawa_backends_neuron.doctor import findings

    return findings()
