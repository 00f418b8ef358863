"""NKI: numbers that only the device knows, as bounds of its loops."""

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
