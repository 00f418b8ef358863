"""What a target's compiler needs of a program, asked of the target's backend."""

import dataclasses

import jax

from kanawa.contracts import Environment
from kanawa.errors import PluginError
from kanawa.plugins import DeviceSpec, ProgramTraits, Purpose, host
from kanawa.plugins.devices import device_spec_of_kind


def program_traits(device: DeviceSpec | None, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits:
    """Returns the traits of programs for `devices` devices; none for a device that no backend describes.

    `parameters` are the model's, 0 where unknown. Raises PluginError where two backends contradict each other.
    """
    if device is None:
        return ProgramTraits()
    arguments = {"device": device, "purpose": purpose, "parameters": parameters, "devices": devices}
    answers = [
        (plugin, traits)
        for plugin, traits in host().collect("kanawa_program_traits", **arguments)
        if traits is not None
    ]
    if len({traits for _, traits in answers}) > 1:
        message = (
            f"{' and '.join(plugin for plugin, _ in answers)} contradict each other about programs for {device.name}; "
            "uninstall one"
        )
        raise PluginError(message)
    return answers[0][1] if answers else ProgramTraits()


def process_device() -> DeviceSpec | None:
    """Returns the description of this process's first device, or None if no backend describes it."""
    return device_spec_of_kind(jax.devices()[0].device_kind)


def for_purpose(environment: Environment, purpose: Purpose) -> Environment:
    """Returns the environment for programs of another purpose than training."""
    plan, mesh = environment.plan, environment.mesh
    if plan.platform is None:
        device = process_device()
    else:
        device = None if plan.device_kind is None else device_spec_of_kind(plan.device_kind)
    traits = program_traits(device, purpose, 0, 1 if mesh is None else mesh.size)
    return dataclasses.replace(environment, plan=dataclasses.replace(plan, purpose=purpose, traits=traits))
