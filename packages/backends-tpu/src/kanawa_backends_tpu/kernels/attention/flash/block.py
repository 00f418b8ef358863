"""What a kernel knows of one block of queries and keys beside the matrices: places, mask, what is added and dropped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from kanawa.kernels.attention.problem import AttentionProblem

from kanawa_backends_tpu.kernels.attention.flash.additions import Additions, Dropping
from kanawa_backends_tpu.kernels.attention.flash.masking import LANES, Masking, Places
from kanawa_backends_tpu.kernels.attention.flash.scalars import row_end
from kanawa_backends_tpu.kernels.attention.flash.tiles import Tiles

#: Names of scratch that holds numbers of what lies along sublanes, equal along lanes, and of the operands, [1, n], that
#: they come from: where queries lie there, and where keys do.
COLUMNS = ("ids", "places", "first_word", "second_word")
OF_QUERIES = ("q_segments_across", "q_positions_across", "drop_first", "drop_second")
OF_KEYS = ("kv_segments_across", "kv_positions_across", "", "")


@dataclass(frozen=True)
class Block:
    """The three steps that a problem adds to what is done with scores; each changes nothing where it has no part."""

    masking: Masking
    additions: Additions
    dropping: Dropping


def column_shapes(sources: tuple[str, ...], names: tuple[str, ...], rows: int) -> list[Any]:
    """Returns the scratch for `COLUMNS`: a little of what the call doesn't need."""
    return [pltpu.VMEM((rows if source in names else 8, LANES), jnp.int32) for source in sources]


def store_columns(refs: Mapping[str, Any], sources: tuple[str, ...]) -> None:
    """Fills the scratch for a new block along sublanes."""
    for source, column in zip(sources, COLUMNS, strict=True):
        if source in refs:
            rows = refs[source].shape[-1]
            refs[column][...] = jnp.broadcast_to(refs[source][...], (LANES, rows)).T


def block(
    refs: Mapping[str, Any], problem: AttentionProblem, tiles: Tiles, at: tuple[Any, Any, Any, Any], queries_down: bool
) -> Block:
    """Returns the block at (row, query head, block of queries, block of keys), `COLUMNS` being filled for it."""
    row, head, i, j = at
    firsts = (i * tiles.q.block, j * tiles.kv.block)
    down, across = {}, {}
    lanes = "kv" if queries_down else "q"
    for what, column in (("segments", "ids"), ("positions", "places")):
        if f"{lanes}_{what}_across" in refs:
            down[what], across[what] = refs[column], refs[f"{lanes}_{what}_across"]
    places = Places(queries_down, down, across, *(firsts if queries_down else firsts[::-1]))
    words = ("first_word", "second_word") if queries_down else ("drop_first", "drop_second")
    return Block(
        Masking(tiles.mask, places, refs["prefix"][row] if "prefix" in refs else None, row_end(refs, tiles, row)),
        Additions(
            places,
            refs["slopes"][head] if "slopes" in refs else None,
            {name: ref for name, ref in refs.items() if name.startswith("bias")},
        ),
        Dropping(places, (refs[words[0]], refs[words[1]]) if problem.dropout_rate else None, problem.dropout_rate),
    )
