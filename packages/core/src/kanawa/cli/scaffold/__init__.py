"""What `kanawa new plugin` writes: a package around one component, with its tests from the conformance kit."""

#: Each is a folder of `templates`.
KINDS = ("layer", "modifier", "kernel", "optimizer", "data", "service", "experiment")
