"""Its figures, its mesh rule and what the doctor says of it."""

from kanawa.plugins import DeviceSpec, Finding, MeshRule

DEVICES = (
    DeviceSpec(
        name="loom",
        platform="loom",
        device_kinds=("Loom 1",),
        peak_flops={"bfloat16": 200e12, "float32": 50e12},
        memory_bytes=64 * 2**30,
        memory_bandwidth=2e12,
        link_bandwidth=300e9,
        network_bandwidth=50e9,
        chips_per_host=8,
        domain_chips=8,
        source="invented",
    ),
)
RULES = (MeshRule(name="loom.any", platform="loom", mesh={"fsdp": -1}),)


def findings():
    """Returns what is missing."""
    return [Finding("warning", "loom", "there are no looms", "weave by hand")]
