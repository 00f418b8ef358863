"""Tile sizes of megablox by shape and chip: the cheapest by a count of what is computed, fetched and started.

Legend: rows M in groups, summed width K, columns N.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable

from kanawa.plugins import DeviceSpec

_LANES = 128
#: Two copies of each tile, and sums, within 16 MiB, the default on-chip budget, which megablox doesn't raise.
_VMEM_BYTES = 13 * 2**20
#: On-chip memory that the gradient of the matrices asks for, and the part of it that its tiles may take.
SUMMED_VMEM_BYTES, _SUMMED_TILES = 48 * 2**20, 0.7
#: Rows in the time in which a tile's products are added to the sums.
_ADDED = 128
#: Multiplications that a matrix unit could have done in what a step of the grid takes beside its matmuls: some 380
#: cycles (final bundles of libtpu 0.0.52 for v5p) of four units of 128 x 128.
_STEP = 380 * 4 * 128 * 128
#: Multiplications in the time of fetching a byte, where the chip isn't known: v5p's.
_PER_BYTE = 83.0
_ROWS = (16, 32, 64, 128, 256, 512, 1024)
_WIDEST = 2048


@dataclasses.dataclass(frozen=True)
class MatmulShape:
    """One of a grouped product's three: `summed_rows` for the gradient of the matrices, whose sum is over rows."""

    rows: int
    inner: int
    columns: int
    groups: int
    itemsize: int
    summed_rows: bool = False


def tile_sizes(product: MatmulShape, device: DeviceSpec | None) -> tuple[int, int, int]:
    """Returns tile sizes of M, K and N, each a multiple of a hardware tile or the whole width."""
    return _cheapest(product, _per_byte(device))


def times_computed(product: MatmulShape, device: DeviceSpec | None) -> float:
    """Returns the multiplications of whole tiles over those of the product, its groups being of any size."""
    tiles = tile_sizes(product, device)
    widths = zip((product.inner, product.columns), tiles[1:], strict=True)
    wide = math.prod(math.ceil(width / tile) * tile / width for width, tile in widths)
    return _row_tiles(product, tiles[0]) * tiles[0] / product.rows * wide


def _row_tiles(p: MatmulShape, rows: int) -> int:
    """Returns the tiles of rows that are computed: of one in which a group ends each group computes all."""
    return math.ceil(p.rows / rows) + min(p.groups, p.rows) - 1


@functools.lru_cache(maxsize=256)
def _cheapest(product: MatmulShape, per_byte: float) -> tuple[int, int, int]:
    whole = math.ceil(product.rows / 16) * 16
    room = SUMMED_VMEM_BYTES * _SUMMED_TILES if product.summed_rows else _VMEM_BYTES
    rows = [size for size in _ROWS if size <= whole] or [16]
    candidates = itertools.product(rows, _widths(product.inner), _widths(product.columns))
    fitting = [sizes for sizes in candidates if _vmem(product, *sizes) <= room]
    # Among equals the largest: fewer steps than counted never hurt.
    return min(fitting, key=lambda sizes: (_cost(product, per_byte, *sizes), [-size for size in sizes]))


def _per_byte(device: DeviceSpec | None) -> float:
    if device is None or not device.peak_flops.get("bfloat16"):
        return _PER_BYTE
    return device.peak_flops["bfloat16"] / 2 / device.memory_bandwidth


def _widths(width: int) -> Iterable[int]:
    """Returns the whole width, where it isn't too wide, and multiples of 128 below it."""
    whole = [width] if width <= _WIDEST else []
    return [*whole, *range(_LANES, min(width, _WIDEST + 1), _LANES)]


def _vmem(p: MatmulShape, rows: int, inner: int, columns: int) -> int:
    inner, columns = (math.ceil(width / _LANES) * _LANES for width in (inner, columns))
    if p.summed_rows:
        # Two copies of what is fetched and written, the left side transposed, the right one masked in fp32, and sums.
        fetched, out = rows * (inner + columns), inner * columns
        return 2 * p.itemsize * (fetched + out) + rows * (inner * p.itemsize + columns * 4) + out * (4 + 4)
    out = rows * columns
    return 2 * p.itemsize * inner * (rows + columns) + out * (2 * 4 + 2 * p.itemsize)


def _cost(p: MatmulShape, per_byte: float, rows: int, inner: int, columns: int) -> float:
    """Returns multiplications in the time that the product takes with these tiles."""
    of_inner, of_columns = math.ceil(p.inner / inner), math.ceil(p.columns / columns)
    of_rows = _row_tiles(p, rows)
    steps = of_rows * of_inner * of_columns
    # A matrix unit takes as long to be filled with 128 x 128 numbers as for 128 rows of them.
    padded = (max(size, _LANES) for size in (rows, inner, columns))
    computed = steps * math.prod(padded)
    if p.summed_rows:
        computed += steps * _ADDED * inner * columns
    left = of_columns * of_rows * rows * of_inner * inner
    if p.summed_rows:
        right, out = of_inner * of_rows * rows * of_columns * columns, p.groups * p.inner * p.columns
    else:
        # A group's matrix stays where it is from one tile of rows to the next, if it is fetched whole.
        fetched = min(p.groups, p.rows) if of_inner == 1 else of_rows
        right, out = fetched * of_inner * inner * of_columns * columns, p.rows * p.columns
    filled = 2 * p.rows * (p.inner + p.columns * p.summed_rows) if p.rows % rows else 0
    moved = p.itemsize * (left + right + out + filled)
    return max(computed, moved * per_byte) + steps * _STEP
