"""Hook implementations of sashimono-parallel; imports only sashimono.plugins and the standard library."""

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
