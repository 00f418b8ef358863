"""Which mesh suits how many GPUs and what model size: data that composition reads.

Seeded from what large Llama-style runs on these GPUs are published to use: parameters are sharded
inside one NVLink domain of 8 where they fit, over several where they don't, and `data` takes what
is left.
"""

from kanawa.plugins import MeshRule

#: From here on activations don't fit whole beside the optimizer state of one device's shard.
MEDIUM = 3_000_000_000
#: Above this the optimizer state doesn't fit in the eight GPUs of a host.
LARGE = 15_000_000_000
#: Above this it is spread over all GPUs there are.
HUGE = 200_000_000_000

_SAVE_PROJECTIONS = (("remat", {"policy": "save-qkv-and-output"}),)


def _large(name: str, devices: tuple[str, ...], fsdp: int) -> MeshRule:
    """Returns the rule that shards a large model over `fsdp` GPUs, several hosts together."""
    return MeshRule(
        name=name,
        platform="gpu",
        devices=devices,
        min_chips=fsdp,
        min_parameters=LARGE + 1,
        max_parameters=HUGE,
        mesh={"data": -1, "fsdp": fsdp},
        modifiers=_SAVE_PROJECTIONS,
    )


RULES = (
    MeshRule(name="gpu.one", platform="gpu", max_chips=1, mesh={}),
    MeshRule(
        name="gpu.host.small",
        platform="gpu",
        max_chips=8,
        max_parameters=MEDIUM - 1,
        mesh={"fsdp": -1},
    ),
    MeshRule(
        name="gpu.small",
        platform="gpu",
        min_chips=9,
        max_parameters=MEDIUM - 1,
        mesh={"data": -1, "fsdp": 8},
    ),
    MeshRule(
        name="gpu.medium",
        platform="gpu",
        min_chips=9,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        mesh={"data": -1, "fsdp": 8},
        modifiers=_SAVE_PROJECTIONS,
    ),
    # What the rules below don't hold for: too few GPUs to spare any for data parallelism.
    MeshRule(
        name="gpu.any",
        platform="gpu",
        min_parameters=MEDIUM,
        mesh={"fsdp": -1},
        modifiers=_SAVE_PROJECTIONS,
        priority=-1,
    ),
    _large("gpu.ampere.large", ("a100", "a100_40gb"), 128),
    _large("gpu.hopper.large", ("h100", "h200"), 64),
    _large("gpu.blackwell.large", ("b200", "b300"), 16),
    _large("gpu.cdna.large", ("mi300x", "mi325x", "mi355x"), 16),
)
