"""Which mesh suits which TPU slice and model size: data that composition reads.

Seeded from what large Llama-style runs on these chips are published to use. Sizes are in JAX
devices; axes that aren't named are 1. Between slices `data` takes what there is, because only it
tolerates a slow network.
"""

from typing import Any

from kanawa.plugins import MeshRule

#: From here on activations don't fit whole beside the optimizer state of one device's shard.
MEDIUM = 3_000_000_000
#: Above this the optimizer state needs every chip of a slice.
LARGE = 15_000_000_000
#: Above this so many activations don't fit beside it.
HUGE = 100_000_000_000

_ALL, _ACROSS_SLICES = {"fsdp": -1}, {"data": -1}
# A head fills the vector lanes, half a head wastes half of them; the matrix units have time for it.
_TURN = ("rope-by-matmul", {"optional": True})
_SAVE_ATTENTION = (_TURN, ("remat", {"policy": "save-qkv-and-output"}))
_SAVE_ATTENTION_AND_GATE = (_TURN, ("remat", {"policy": "save-attention-and-gate"}))
_SAVE_PROJECTIONS = (_TURN, ("remat", {"policy": "save-projections"}))
_OFFLOAD_DOTS = (_TURN, ("remat", {"policy": "offload-dots"}))
_OFFLOAD_ATTENTION = (_TURN, ("remat", {"policy": "offload-qkv-and-output"}))
_ONE_ROW_OF_FOUR = (("accumulate", {"microbatches": 4}),)


def _rule(name: str, mesh: dict[str, int] = _ALL, dcn: dict[str, int] = _ACROSS_SLICES, **demands: Any) -> MeshRule:
    """Returns a rule that shards parameters over a whole slice, unless it has another mesh."""
    return MeshRule(name=name, platform="tpu", mesh=mesh, dcn=dcn, **demands)


RULES = (
    _rule(
        "tpu.one_chip",
        devices=("v4", "v5e", "v5p", "v6e"),
        max_chips=1,
        mesh={},
        dcn={},
    ),
    _rule(
        "tpu.small",
        max_parameters=MEDIUM - 1,
    ),
    _rule(
        "tpu.large",
        min_parameters=MEDIUM,
        modifiers=_SAVE_ATTENTION,
    ),
    _rule(
        "tpu.v4.medium",
        devices=("v4",),
        min_chips=16,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        mesh={"data": -1, "fsdp": 16},
        modifiers=_SAVE_ATTENTION,
    ),
    _rule(
        "tpu.v5p.medium",
        devices=("v5p",),
        min_chips=64,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        mesh={"data": -1, "fsdp": 64},
        modifiers=_SAVE_PROJECTIONS,
    ),
    # 95 GiB a chip and two rows of 4,096 tokens: all but one projection of a 70B model's layers fits.
    _rule(
        "tpu.v5p.large",
        devices=("v5p",),
        min_chips=512,
        min_parameters=LARGE + 1,
        max_parameters=HUGE,
        # Over 512, a bf16 shard of a matrix 8,192 wide is 16 rows, and the compiler gathers it by summing zeros.
        mesh={"data": -1, "fsdp": 256},
        modifiers=_SAVE_ATTENTION_AND_GATE,
    ),
    # 16 GiB a chip: beside the state of a 7B model only the layers' inputs fit, and what waits in the host's memory.
    _rule(
        "tpu.v5e.large",
        devices=("v5e",),
        min_parameters=MEDIUM,
        modifiers=_OFFLOAD_DOTS,
    ),
    # A whole batch on one slice leaves several rows a chip: one at a time.
    _rule(
        "tpu.v5e.medium.slice",
        devices=("v5e",),
        min_chips=256,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        slices="single",
        dcn={},
        modifiers=(*_OFFLOAD_DOTS, *_ONE_ROW_OF_FOUR),
    ),
    _rule(
        "tpu.v5e.medium.slices",
        devices=("v5e",),
        min_chips=1024,
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        slices="multi",
        modifiers=_SAVE_PROJECTIONS,
    ),
    # 32 GB a chip.
    _rule(
        "tpu.v6e.medium.slices",
        devices=("v6e",),
        min_parameters=MEDIUM,
        max_parameters=LARGE,
        slices="multi",
        modifiers=_OFFLOAD_ATTENTION,
    ),
    _rule(
        "tpu.v6e.large",
        devices=("v6e",),
        min_parameters=LARGE + 1,
        modifiers=(*_OFFLOAD_ATTENTION, *_ONE_ROW_OF_FOUR),
    ),
    _rule(
        "tpu.v6e.large.slices",
        devices=("v6e",),
        min_parameters=LARGE + 1,
        slices="multi",
        modifiers=(_TURN, ("remat", {"policy": "offload-qkv-and-input"})),
    ),
    _rule(
        "tpu.v7x.large",
        devices=("v7x", "tpu7x"),
        min_parameters=LARGE + 1,
        modifiers=(_TURN, ("remat", {"policy": "save-qkv-offload-input"})),
    ),
)
