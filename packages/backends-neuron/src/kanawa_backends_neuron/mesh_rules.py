"""Which mesh suits how many Trainium chips and what model size: data that composition reads.

Sizes are in JAX devices. Tensor parallelism stays inside a chip, whose cores share memory; FSDP
takes the rest. From published Trainium2 runs; never run on a device.
"""

from kanawa.plugins import MeshRule

#: From here on activations don't fit whole beside the optimizer state of one device's shard.
MEDIUM = 3_000_000_000
_SAVE_PROJECTIONS = (("remat", {"policy": "save-qkv-and-output"}),)


def _rules(device: str, tensor: int) -> tuple[MeshRule, MeshRule]:
    mesh = {"fsdp": -1, "tensor": tensor}
    small = MeshRule(
        name=f"neuron.{device}.small",
        platform="neuron",
        devices=(device,),
        max_parameters=MEDIUM - 1,
        mesh=mesh,
    )
    large = MeshRule(
        name=f"neuron.{device}.large",
        platform="neuron",
        devices=(device,),
        min_parameters=MEDIUM,
        mesh=mesh,
        modifiers=_SAVE_PROJECTIONS,
    )
    return small, large


RULES = (*_rules("trn1", tensor=2), *_rules("trn2", tensor=4), *_rules("trn3", tensor=4))
