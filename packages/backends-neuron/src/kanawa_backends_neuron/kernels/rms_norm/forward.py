"""NKI: RMSNorm's forward, with each row's 1 / rms. Legend: N rows, E channels."""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.tiles import PARTITIONS, filled, load, rows_of, share


def rms_norm_forward(x: Any, scale: Any, eps: float) -> tuple[Any, Any]:
    """Returns y like x, and 1 / rms of each row, fp32 [tiles, rows a tile, 1].

    x [tiles, rows a tile, E], a tile having 128 rows at most; scale fp32 [1, E].
    """
    tiles, count, width = x.shape
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    inverse = nl.ndarray((tiles, count, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    scales, small = on_every_row(scale, width), filled((count, 1), eps)

    def one_tile(tile: Any) -> None:
        rows = load(x, tile, 0, count, width)
        squares = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
        total, root = (nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        # The Scalar Engine sums in fp32 what it squares; the squares themselves are read by nobody.
        nisa.activation(
            dst=squares,
            op=nl.square,
            data=rows,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.activation(dst=root, op=nl.rsqrt, data=total, scale=1.0 / width, bias=small)
        result = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=result, data=rows, op0=nl.multiply, operand0=root, op1=nl.multiply, operand1=scales[0:count, :]
        )
        nisa.dma_copy(dst=rows_of(y, tile, 0, count, width), src=result)
        nisa.dma_copy(dst=rows_of(inverse, tile, 0, count, 1), src=root)

    nl.fori_loop(*share(tiles), one_tile)
    return y, inverse


def on_every_row(vector: Any, width: int) -> Any:
    """Returns a vector [1, E] of HBM on all partitions: [128, E]."""
    tile = nl.ndarray((PARTITIONS, width), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=vector.ap(pattern=[[0, PARTITIONS], [1, width]]))
    return tile
