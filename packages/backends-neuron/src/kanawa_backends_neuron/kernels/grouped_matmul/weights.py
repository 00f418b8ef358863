"""NKI: the gradient of each group's matrix, lhs^T dout over the group's rows. Legend: see `rows`."""

import functools
from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.grouped_matmul.rows import COLUMNS, gathered, indices
from kanawa_backends_neuron.kernels.tiles import PARTITIONS, bound, filled, share

#: Rows of a panel of the gradient whose sums lie in SBUF: with as many columns, each row read is used 512 times.
DEPTH = 512


def grouped_weights(lhs: Any, dout: Any, like: Any, reads: Any, limits: Any) -> Any:
    """Returns [G, K, N] in the dtype of `like`, the matrices; zeros for groups without rows.

    lhs [M, K]; dout [M, N]; reads uint32 [blocks, 128] and limits int32 [G, 2]: see `blocks.Blocks`.
    """
    groups, inner, total = like.shape
    out = nl.ndarray(like.shape, dtype=like.dtype, buffer=nl.shared_hbm)

    def one_group(group: Any) -> None:
        first, end = bound(limits, group, 0), bound(limits, group, 1)
        for deep in range(0, inner, DEPTH):
            for start in range(0, total, COLUMNS):
                depth, width = min(DEPTH, inner - deep), min(COLUMNS, total - start)
                sums = [filled((min(PARTITIONS, depth - part), width), 0.0) for part in range(0, depth, PARTITIONS)]

                nl.fori_loop(first, end, functools.partial(_add_block, sums, lhs, dout, reads, deep, start))
                for number, total_tile in enumerate(sums):
                    rounded = nl.ndarray(total_tile.shape, dtype=like.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=rounded, src=total_tile)
                    pattern = [[total, total_tile.shape[0]], [1, width]]
                    place = (deep + number * PARTITIONS) * total + start
                    target = out.ap(pattern=pattern, offset=place, scalar_offset=group, indirect_dim=0)
                    nisa.dma_copy(dst=target, src=rounded)

    nl.fori_loop(*share(groups), one_group)
    return out


def _add_block(sums: list[Any], lhs: Any, dout: Any, reads: Any, deep: int, start: int, block: Any) -> None:
    """Adds a block's part of a panel of the gradient to its tiles."""
    places = indices(reads, block, 0)
    depth, width = sum(tile.shape[0] for tile in sums), sums[0].shape[1]
    left, right = gathered(lhs, places, deep, depth), gathered(dout, places, start, width)
    for number, tile in enumerate(sums):
        part = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.psum)
        at = number * PARTITIONS
        nisa.nc_matmul(dst=part, stationary=left[:, at : at + tile.shape[0]], moving=right, accumulate=False)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=part, op=nl.add)
