"""Which mesh suits which TPU slice and model size: data that composition reads.

Seeded from what large Llama-style runs on these chips are published to use. Sizes are in JAX
devices; axes that aren't named are 1. Between slices `data` takes what there is, because only it
tolerates a slow network.
"""

from kanawa.plugins import MeshRule

#: From here on activations don't fit whole beside the optimizer state of one device's shard.
MEDIUM = 3_000_000_000
#: Above this the optimizer state needs every chip of a slice.
LARGE = 15_000_000_000
#: Above this so many activations don't fit beside it.
HUGE = 100_000_000_000

_ACROSS_SLICES = {"data": -1}
# A head fills the vector lanes, half a head wastes half of them; the matrix units have time for it.
_TURN = ("rope-by-matmul", {"optional": True})
_SAVE_ATTENTION = (_TURN, ("remat", {"policy": "save-qkv-and-output"}))
_SAVE_ATTENTION_AND_GATE = (_TURN, ("remat", {"policy": "save-attention-and-gate"}))
_SAVE_PROJECTIONS = (_TURN, ("remat", {"policy": "save-projections"}))
_OFFLOAD_DOTS = (_TURN, ("remat", {"policy": "offload-dots"}))
_OFFLOAD_ATTENTION = (_TURN, ("remat", {"policy": "offload-qkv-and-output"}))
_ONE_ROW_OF_FOUR = (("accumulate", {"microbatches": 4}),)

RULES = (
    MeshRule(
        name="tpu.one_chip",
        platform="tpu",
        devices=("v4", "v5e", "v5p", "v6e"),
        max_chips=1,
        mesh={},
    ),
    MeshRule(
        name="tpu.small",
        platform="tpu",
        max_parameters=MEDIUM - 1,
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
    ),
    MeshRule(
        name="tpu.large",
        platform="tpu",
        min_parameters=MEDIUM,
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=_SAVE_ATTENTION,
    ),
    MeshRule(
        name="tpu.v4.medium",
        platform="tpu",
        devices=("v4",),
        min_chips=16,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        mesh={"data": -1, "fsdp": 16},
        dcn=_ACROSS_SLICES,
        modifiers=_SAVE_ATTENTION,
    ),
    MeshRule(
        name="tpu.v5p.medium",
        platform="tpu",
        devices=("v5p",),
        min_chips=64,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        mesh={"data": -1, "fsdp": 64},
        dcn=_ACROSS_SLICES,
        modifiers=_SAVE_PROJECTIONS,
    ),
    # 95 GiB a chip and two rows of 4,096 tokens: all but one projection of a 70B model's layers fits.
    MeshRule(
        name="tpu.v5p.large",
        platform="tpu",
        devices=("v5p",),
        min_chips=512,
        min_parameters=LARGE + 1,
        max_parameters=HUGE,
        # Over 512, a bf16 shard of a matrix 8,192 wide is 16 rows, and the compiler gathers it by summing zeros.
        mesh={"data": -1, "fsdp": 256},
        dcn=_ACROSS_SLICES,
        modifiers=_SAVE_ATTENTION_AND_GATE,
    ),
    # 16 GiB a chip: beside the state of a 7B model only the layers' inputs fit, and what waits in the host's memory.
    MeshRule(
        name="tpu.v5e.large",
        platform="tpu",
        devices=("v5e",),
        min_parameters=MEDIUM,
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=_OFFLOAD_DOTS,
    ),
    # A whole batch on one slice leaves several rows a chip: one at a time.
    MeshRule(
        name="tpu.v5e.medium.slice",
        platform="tpu",
        devices=("v5e",),
        min_chips=256,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        slices="single",
        mesh={"fsdp": -1},
        modifiers=(*_OFFLOAD_DOTS, *_ONE_ROW_OF_FOUR),
    ),
    MeshRule(
        name="tpu.v5e.medium.slices",
        platform="tpu",
        devices=("v5e",),
        min_chips=1024,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        slices="multi",
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=_SAVE_PROJECTIONS,
    ),
    # 32 GB a chip.
    MeshRule(
        name="tpu.v6e.medium.slices",
        platform="tpu",
        devices=("v6e",),
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        slices="multi",
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=_OFFLOAD_ATTENTION,
    ),
    MeshRule(
        name="tpu.v6e.large",
        platform="tpu",
        devices=("v6e",),
        min_parameters=LARGE + 1,
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=(*_OFFLOAD_ATTENTION, *_ONE_ROW_OF_FOUR),
    ),
    MeshRule(
        name="tpu.v6e.large.slices",
        platform="tpu",
        devices=("v6e",),
        min_parameters=LARGE + 1,
        slices="multi",
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=(_TURN, ("remat", {"policy": "offload-qkv-and-input"})),
    ),
    MeshRule(
        name="tpu.v7x.large",
        platform="tpu",
        devices=("v7x", "tpu7x"),
        min_parameters=LARGE + 1,
        mesh={"fsdp": -1},
        dcn=_ACROSS_SLICES,
        modifiers=(_TURN, ("remat", {"policy": "save-qkv-offload-input"})),
    ),
)
