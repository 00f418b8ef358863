"""Hook implementations of kanawa-layers; imports only kanawa.plugins and the standard library."""

from kanawa.plugins import Command, hookimpl


@hookimpl
def kanawa_commands() -> list[Command]:
    """Returns the verb that converts models."""
    from kanawa_layers.commands import convert

    return [convert.command()]
