"""NKI: tiles between HBM, SBUF and PSUM, and numbers that only the device knows. Imported by the kernels alone."""

from typing import Any

import nki.isa as nisa
import nki.language as nl


def bound(table: Any, row: Any, column: int) -> Any:
    """Returns a number of an int32 table as a register, for a device loop to run to."""
    tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    pattern = [[1, 1], [1, 1]]
    nisa.dma_copy(dst=tile, src=table.ap(pattern=pattern, offset=column, scalar_offset=row, indirect_dim=0))
    register = nisa.register_alloc()
    nisa.register_load(register, tile)
    return register


PARTITIONS = 128


def chunks(width: int) -> list[tuple[int, int]]:
    """Returns (chunk, its size) of a contraction of `width`: a matmul contracts over 128 partitions at most."""
    return [(c, min(PARTITIONS, width - c * PARTITIONS)) for c in range((width + PARTITIONS - 1) // PARTITIONS)]


def filled(shape: tuple[int, ...], value: float) -> Any:
    """Returns an fp32 tile in SBUF full of one number."""
    tile = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile


def rows_of(source: Any, row: Any, first: int, count: int, width: int) -> Any:
    """Returns the access pattern of `count` rows of `width` elements, from `first` on, of a device loop's `row`.

    source: HBM, its first axis being what the loop runs over.
    """
    return source.ap(pattern=[[width, count], [1, width]], offset=first * width, scalar_offset=row, indirect_dim=0)


def load(source: Any, row: Any, first: int, count: int, width: int) -> Any:
    """Returns those rows in SBUF: [count, width]."""
    tile = nl.ndarray((count, width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=rows_of(source, row, first, count, width))
    return tile


def transpose_into(dst: Any, tile: Any) -> None:
    """Writes the transpose of an SBUF tile, 128 by 128 at most, to SBUF: the Tensor Engine turns it, into PSUM."""
    transposed = nl.ndarray(dst.shape, dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed, data=tile)
    nisa.tensor_copy(dst=dst, src=transposed)


def columns_into(dst: Any, tile: Any, first: int, width: int) -> None:
    """Writes rows [count, width] as columns, from `first` on, of `dst` [128, chunks, …]: the width on partitions."""
    count = tile.shape[0]
    for chunk, size in chunks(width):
        start = chunk * PARTITIONS
        transpose_into(dst[0:size, chunk, first : first + count], tile[0:count, start : start + size])


def columns(tile: Any, width: int) -> Any:
    """Returns rows [count, width] with the width on partitions: [128, chunks, count]."""
    parts = chunks(width)
    transposed = nl.ndarray((parts[0][1], len(parts), tile.shape[0]), dtype=tile.dtype, buffer=nl.sbuf)
    columns_into(transposed, tile, 0, width)
    return transposed


def tile_matmul(left: Any, right: Any, first: int, count: int, width: int) -> Any:
    """Returns left^T right in PSUM, fp32: columns [128, chunks, rows] and `count` columns of another, from `first`."""
    result = nl.ndarray((left.shape[2], count), dtype=nl.float32, buffer=nl.psum)
    for chunk, size in chunks(width):
        nisa.nc_matmul(
            dst=result,
            stationary=left[0:size, chunk, :],
            moving=right[0:size, chunk, first : first + count],
            accumulate=chunk > 0,
        )
    return result


def share(total: int) -> tuple[int, int]:
    """Returns this program's part of `total` iterations: the programs of a logical core divide them."""
    program, programs = nl.program_id(0), nl.num_programs()
    return total * program // programs, total * (program + 1) // programs
