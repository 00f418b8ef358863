"""Hook implementations of sashimono-parallel; imports only sashimono.plugins and the standard library."""

from typing import Any

from sashimono.errors import SashimonoError
from sashimono.plugins import Command, MeshRule, hookimpl


@hookimpl
def sashimono_mesh_rules() -> list[MeshRule]:
    """Returns the rule for several CPU devices: shard everything over them."""
    return [MeshRule(name="cpu", platform="cpu", min_chips=1, mesh={"fsdp": -1})]


@hookimpl
def sashimono_commands() -> list[Command]:
    """Returns the verb `plan`."""
    from sashimono_parallel.plan.command import command

    return [command()]


@hookimpl
def sashimono_config_checks(config: Any, target: Any) -> list[str]:
    """Returns what of a workload doesn't fit its mesh on the target: axes, sizes, strategies."""
    if target is None or not {"execution", "model"} <= set(config.fields()):
        return []
    from sashimono_parallel.divisibility import mesh_problems

    try:
        return mesh_problems(config, target.jax_devices, target.slices)
    except SashimonoError:
        return []  # Unset fields or a model that can't be built: composition reports those itself.
