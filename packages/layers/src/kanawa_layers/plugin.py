"""Hook implementations of kanawa-layers; imports only kanawa.plugins and the standard library."""

from kanawa.plugins import Command, Kind, hookimpl


@hookimpl
def kanawa_kinds() -> list[Kind]:
    """Returns the kind under which Hugging Face's model types are looked up."""
    family = "kanawa.contracts:ForeignFamily"
    return [Kind("hf_families", "Hugging Face model types, read and written", instance_of=family)]


@hookimpl
def kanawa_commands() -> list[Command]:
    """Returns the verb that converts models."""
    from kanawa_layers.commands import convert

    return [convert.command()]
