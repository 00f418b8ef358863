"""What a target's compiler needs of a program, asked of the target's backend."""

import dataclasses

import jax

from kanawa.contracts import Environment
from kanawa.plugins import DeviceSpec, ProgramTraits, Purpose, host
from kanawa.plugins.devices import device_spec_of_kind
from kanawa.plugins.discovery import own_packages
from kanawa.plugins.states import SKIP_VARIABLE


def program_traits(device: DeviceSpec | None, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits:
    """Returns the traits of programs for `devices` devices; none for a device that no backend describes.

    `parameters` are the model's, 0 where unknown. Where two backends contradict each other, that of Kanawa's packages
    is believed, else the first in calling order, with a warning.
    """
    if device is None:
        return ProgramTraits()
    arguments = {"device": device, "purpose": purpose, "parameters": parameters, "devices": devices}
    answers = host().collect("kanawa_program_traits", **arguments)
    answers.sort(key=lambda answer: answer[0].partition(":")[0] not in own_packages())
    others = [plugin for plugin, traits in answers if traits != answers[0][1]]
    if others:
        host().warn(
            f"{answers[0][0]} and {others[0]} contradict each other about programs for {device.name}: the first is "
            f"believed; {SKIP_VARIABLE}={others[0]} leaves the other out"
        )
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
