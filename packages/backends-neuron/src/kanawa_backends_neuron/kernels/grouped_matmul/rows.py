"""NKI: rows of each group times the group's matrix, block by block.

Legend: M rows, K inner, N columns, G groups, B rows of a block.
"""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.tiles import PARTITIONS, chunks, columns_into, share

#: Columns of a tile of the output: one bank of PSUM in fp32.
COLUMNS = 512


def grouped_rows(lhs: Any, rhs: Any, reads: Any, writes: Any, groups: Any) -> Any:
    """Returns [M, N] in lhs's dtype.

    lhs [M, K]; rhs [G, K, N]; reads, writes uint32 [blocks, B] and groups int32 [blocks, 1]: see `blocks.Blocks`.
    """
    rows, inner = lhs.shape
    total = rhs.shape[2]
    blocks, size = reads.shape
    out = nl.ndarray((rows, total), dtype=lhs.dtype, buffer=nl.shared_hbm)

    def one_block(block: Any) -> None:
        group = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=group, src=groups.ap(pattern=[[1, 1], [1, 1]], scalar_offset=block, indirect_dim=0))
        parts = range(0, size, PARTITIONS)
        transposed = nl.ndarray((min(PARTITIONS, inner), len(chunks(inner)), size), dtype=lhs.dtype, buffer=nl.sbuf)
        for first in parts:
            columns_into(transposed, gathered(lhs, indices(reads, block, first), 0, inner), first, inner)
        targets = [indices(writes, block, first) for first in parts]
        for start in range(0, total, COLUMNS):
            width = min(COLUMNS, total - start)
            sums = [nl.ndarray((PARTITIONS, width), dtype=nl.float32, buffer=nl.psum) for _ in parts]
            for chunk, depth in chunks(inner):
                # A matrix's tile, once loaded, meets all of the block's rows.
                weights = nl.ndarray((depth, width), dtype=rhs.dtype, buffer=nl.sbuf)
                place = chunk * PARTITIONS * total + start
                pattern = [[total, depth], [1, width]]
                nisa.dma_copy(
                    dst=weights, src=rhs.ap(pattern=pattern, offset=place, scalar_offset=group, indirect_dim=0)
                )
                for number, first in enumerate(parts):
                    nisa.nc_matmul(
                        dst=sums[number],
                        stationary=transposed[0:depth, chunk, first : first + PARTITIONS],
                        moving=weights,
                        accumulate=chunk > 0,
                    )
            for number, target in enumerate(targets):
                rounded = nl.ndarray((PARTITIONS, width), dtype=lhs.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=rounded, src=sums[number])
                # Places past the last row are no rows: nothing is written there.
                nisa.dma_copy(dst=picked(out, target, start, width), src=rounded, oob_mode=nisa.oob_mode.skip)

    nl.fori_loop(*share(blocks), one_block)
    return out


def indices(table: Any, block: Any, first: int) -> Any:
    """Returns 128 of a block's row numbers, from `first` on: [128, 1] in SBUF."""
    places = nl.ndarray((PARTITIONS, 1), dtype=nl.uint32, buffer=nl.sbuf)
    pattern = [[1, PARTITIONS], [1, 1]]
    nisa.dma_copy(dst=places, src=table.ap(pattern=pattern, offset=first, scalar_offset=block, indirect_dim=0))
    return places


def picked(source: Any, places: Any, start: int, width: int) -> Any:
    """Returns the access pattern of `width` columns, from `start` on, of the rows at `places`."""
    pattern = [[source.shape[1], PARTITIONS], [1, width]]
    return source.ap(pattern=pattern, offset=start, vector_offset=places, indirect_dim=0)


def gathered(source: Any, places: Any, start: int, width: int) -> Any:
    """Returns those columns of those rows in SBUF; zeros for places past the last row."""
    tile = nl.ndarray((PARTITIONS, width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=tile, src=picked(source, places, start, width), oob_mode=nisa.oob_mode.skip)
    return tile
