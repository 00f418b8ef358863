"""Hook implementations of sashimono-layers; imports only sashimono.plugins and the standard library."""

from sashimono.plugins import Command, hookimpl


@hookimpl
def sashimono_commands() -> list[Command]:
    """Returns the verb that converts models."""
    from sashimono_layers.commands import convert

    return [convert.command()]
