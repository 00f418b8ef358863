"""Hooks of sashimono-backends-neuron; imports sashimono.plugins and the standard library only."""

from collections.abc import Sequence
from typing import Any

from sashimono.plugins import DeviceSpec, Finding, MeshRule, hookimpl


@hookimpl
def sashimono_device_specs() -> Sequence[DeviceSpec]:
    """Returns Trainium and Trainium2."""
    from sashimono_backends_neuron.device import DEVICES

    return DEVICES


@hookimpl
def sashimono_mesh_rules() -> Sequence[MeshRule]:
    """Returns the mesh rules for Trainium."""
    from sashimono_backends_neuron.mesh_rules import RULES

    return RULES


@hookimpl
def sashimono_compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any] | None:
    """Returns XLA options for Trainium; None for any other device."""
    if device.platform != "neuron":
        return None
    from sashimono_backends_neuron.compiler import compiler_options

    return compiler_options()


@hookimpl
def sashimono_topology(target: Any) -> list[Any] | None:
    """Returns compile-only devices for a Trainium target; None for any other."""
    if target.device.platform != "neuron":
        return None
    from sashimono_backends_neuron.topology import topology

    return topology(target)


@hookimpl
def sashimono_doctor() -> Sequence[Finding]:
    """Returns whether a Trainium chip here would be used."""
    from sashimono_backends_neuron.doctor import findings

    return findings()
