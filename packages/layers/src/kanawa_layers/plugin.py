"""Hook implementations of kanawa-layers; imports only kanawa.plugins and the standard library."""

from kanawa.plugins import Command, Kind, hookimpl


@hookimpl
def kanawa_kinds() -> list[Kind]:
    """Returns the kinds of activations, and of what Hugging Face's configs name."""
    family, function = "kanawa.contracts:ForeignFamily", "collections.abc:Callable"
    return [
        Kind("activations", "functions between the projections of a feed-forward", instance_of=function),
        Kind("hf_families", "Hugging Face model types, read and written", instance_of=family),
        Kind("picture_samplers", "how noise becomes a picture", subclass_of="kanawa.contracts:Sampler"),
        Kind("hf_activations", "activations by the names of Hugging Face configs", instance_of=function),
    ]


@hookimpl
def kanawa_commands() -> list[Command]:
    """Returns the verb that converts models."""
    from kanawa_layers.commands import convert

    return [convert.command()]
