"""The features that attention problems are generated from: those that models, packing, caches and serving ask for."""

from collections.abc import Mapping
from typing import Any

from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import MaskSpec

from kanawa_kernel_tools.examples.space import Space

#: Lengths are small, because kernels are interpreted; 131 and 200 are there for what isn't in multiples of a block.
FEATURES: dict[str, tuple[Any, ...]] = {
    "mode": ("train", "prefill", "decode"),
    "dtype": ("float32", "bfloat16", "float16"),
    "batch": (2, 1, 3),
    "q_length": (128, 256, 384, 64, 131, 40),
    # As long as the queries are, unless it says otherwise.
    "kv_length": (None, 256, 512, 384, 200),
    # Query heads and key heads.
    "heads": ((4, 2), (4, 4), (4, 1), (6, 3), (8, 1), (1, 1)),
    # Of queries and keys, and of values.
    "head_dims": ((64, 64), (128, 128), (80, 80), (96, 96), (192, 128), (192, 192), (256, 256), (64, 128)),
    "scale": (None, 0.25),
    "causal": (True, False),
    "window": (None, (31, None), (100, None), (16, 24), (None, 8)),
    "chunk": (None, 64, 48),
    "prefix": (False, True),
    "segments": (False, True),
    "predicates": ((), ("dilated",)),
    "any_of": ((), ((MaskSpec(causal=True, window=(20, None)), MaskSpec(causal=True, chunk=50)),)),
    "logit_cap": (None, 5.0, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "dropout_rate": (0.0, 0.3),
    # Which dimensions of [batch, heads, queries, keys] the bias has; the others broadcast.
    "bias": (None, "bhqk", "hqk", "bk", "qk", "h"),
    "positions": (None, "q", "q kv"),
    "kv_lengths": (False, True),
    "page_size": (None, 16, 64, 128),
    "ragged_sequences": (None, 3),
}


def build(choice: Mapping[str, Any]) -> AttentionProblem | None:
    """Returns the problem of a choice; None where its values can't meet in one call."""
    c = choice
    serves = c["mode"] != "train"
    queries = 1 if c["mode"] == "decode" and c["ragged_sequences"] is None else c["q_length"]
    keys = c["kv_length"] or c["q_length"]
    paged = c["page_size"] is not None
    ragged = c["ragged_sequences"] is not None
    if paged:
        # Whole pages; with a table, where rows end is an operand.
        keys = -(-keys // c["page_size"]) * c["page_size"]
    mask = _mask(c)
    positions = set((c["positions"] or "").split())
    # Two lengths don't say where queries are among the keys: then positions are operands.
    placed = mask.uses - {"segments", "prefix"} or c["alibi"]
    if queries != keys and not c["kv_lengths"] and placed:
        positions.add("q")
    impossible = (
        (paged or ragged or c["kv_lengths"]) and not serves,
        paged and not c["kv_lengths"],
        paged and ("kv" in positions or mask.needs_segments),
        ragged and not paged,
        ragged and (mask.needs_prefix or c["bias"] is not None),
        c["kv_lengths"] and queries > keys,
        serves and c["dropout_rate"] > 0,
        c["kv_lengths"] and mask.needs_segments,
    )
    if any(impossible):
        return None
    return AttentionProblem(
        batch=1 if ragged else c["batch"],
        q_length=queries,
        kv_length=keys,
        num_heads=c["heads"][0],
        num_kv_heads=c["heads"][1],
        head_dim=c["head_dims"][0],
        v_head_dim=c["head_dims"][1],
        dtype=c["dtype"],
        mask=mask,
        scale=c["scale"] or c["head_dims"][0] ** -0.5,
        logit_cap=c["logit_cap"],
        bias_shape=_bias_shape(c, queries, keys),
        has_sinks=c["sinks"],
        has_alibi=c["alibi"],
        dropout_rate=c["dropout_rate"],
        has_q_positions="q" in positions,
        has_kv_positions="kv" in positions,
        has_kv_lengths=c["kv_lengths"],
        mode=c["mode"],
        page_size=c["page_size"],
        ragged_sequences=c["ragged_sequences"],
    )


def _mask(c: Mapping[str, Any]) -> MaskSpec:
    return MaskSpec(
        causal=c["causal"],
        window=c["window"],
        chunk=c["chunk"],
        prefix=c["prefix"],
        segments=c["segments"],
        predicates=c["predicates"],
        any_of=c["any_of"],
    )


def _bias_shape(c: Mapping[str, Any], queries: int, keys: int) -> tuple[int, int, int, int] | None:
    if c["bias"] is None:
        return None
    batch, heads, rows, columns = (
        size if letter in c["bias"] else 1
        for letter, size in zip("bhqk", (c["batch"], c["heads"][0], queries, keys), strict=True)
    )
    return batch, heads, rows, columns


SPACE = Space(FEATURES, build)
