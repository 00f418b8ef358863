"""What `kanawa new plugin` writes: a package around one component, with its tests from the conformance kit."""

#: Each is a folder of `templates`.
KINDS = (
    *("layer", "modifier", "kernel", "cache", "loss", "model", "optimizer", "source", "corpus", "service"),
    *("experiment", "command", "backend"),
)
#: Other names of kinds: `kanawa list` calls sources data.
ALIASES = {"data": "source"}
