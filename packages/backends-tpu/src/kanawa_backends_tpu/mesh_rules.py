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
    # Where memory is short the planner chooses; the rule holds where nothing has to be recomputed.
    _rule(
        "tpu.short",
        devices=("v4", "v5e", "v6e"),
        min_chips=2,
        min_parameters=MEDIUM,
        modifiers=(_TURN,),
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
    _rule(
        "tpu.v7x.large",
        devices=("v7x", "tpu7x"),
        min_parameters=LARGE + 1,
        modifiers=(_TURN, ("remat", {"policy": "save-qkv-offload-input"})),
    ),
)
