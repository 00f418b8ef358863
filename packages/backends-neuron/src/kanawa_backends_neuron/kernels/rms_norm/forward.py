"""NKI: RMSNorm's forward, with each row's 1 / rms. Legend: N rows, E channels."""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.tiles import PARTITIONS, filled, load, rows_of, share


def rms_norm_forward(x: Any, scale: Any, eps: float) -> tuple[Any, Any]:
    """Returns y like x, and 1 / rms of each row, fp32 [loops, rows a loop, 1].

    x [loops, rows a loop, E]; scale fp32 [1, E].
    """
    loops, rows, width = x.shape
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    inverse = nl.ndarray((loops, rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    scales, small = on_every_row(scale, width), filled((PARTITIONS, 1), eps)

    def one_loop(loop: Any) -> None:
        # Iterations of a device loop don't overlap; the tiles of one do.
        for first in range(0, rows, PARTITIONS):
            count = min(PARTITIONS, rows - first)
            result, root = _normalised(load(x, loop, first, count, width), scales, small)
            nisa.dma_copy(dst=rows_of(y, loop, first, count, width), src=result)
            nisa.dma_copy(dst=rows_of(inverse, loop, first, count, 1), src=root)

    nl.fori_loop(*share(loops), one_loop)
    return y, inverse


def _normalised(rows: Any, scales: Any, small: Any) -> tuple[Any, Any]:
    """Returns a tile of rows normalised, and 1 / rms of each."""
    count, width = rows.shape
    squares, result = (nl.ndarray((count, width), dtype=rows.dtype, buffer=nl.sbuf) for _ in range(2))
    total, root = (nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    # The Scalar Engine sums in fp32 what it squares; the squares themselves are never read.
    nisa.activation(
        dst=squares,
        op=nl.square,
        data=rows,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.activation(dst=root, op=nl.rsqrt, data=total, scale=1.0 / width, bias=small[0:count, :])
    nisa.scalar_tensor_tensor(
        dst=result, data=rows, op0=nl.multiply, operand0=root, op1=nl.multiply, operand1=scales[0:count, :]
    )
    return result, root


def on_every_row(vector: Any, width: int) -> Any:
    """Returns a vector [1, E] of HBM on all partitions: [128, E]."""
    tile = nl.ndarray((PARTITIONS, width), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=vector.ap(pattern=[[0, PARTITIONS], [1, width]]))
    return tile
