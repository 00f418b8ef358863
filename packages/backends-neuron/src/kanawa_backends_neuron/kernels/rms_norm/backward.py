"""NKI: RMSNorm's backward. Legend: see `forward`.

With r = 1 / rms and g = dy * scale: dx = r * (g - x * r^2 * mean(g * x)), dscale = sum over rows of dy * x * r.
"""

from typing import Any

import nki.isa as nisa
import nki.language as nl

from kanawa_backends_neuron.kernels.rms_norm.forward import on_every_row
from kanawa_backends_neuron.kernels.tiles import PARTITIONS, filled, load, rows_of, share

#: Columns of a matmul's moving operand.
_COLUMNS = 512


def rms_norm_backward(x: Any, scale: Any, inverse: Any, dy: Any) -> tuple[Any, Any]:
    """Returns dx like x, and dscale of each program's rows, fp32 [programs, E]; operands as `rms_norm_forward`'s."""
    loops, rows, width = x.shape
    programs, program = nl.num_programs(), nl.program_id(0)
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dscale = nl.ndarray((programs, width), dtype=nl.float32, buffer=nl.shared_hbm)
    scales, sums = on_every_row(scale, width), filled((min(PARTITIONS, rows), width), 0.0)

    def one_loop(loop: Any) -> None:
        for first in range(0, rows, PARTITIONS):
            count = min(PARTITIONS, rows - first)
            tile, grads = load(x, loop, first, count, width), load(dy, loop, first, count, width)
            root = load(inverse, loop, first, count, 1)
            result = _row_gradients(tile, grads, root, scales[0:count, :], sums[0:count, :])
            nisa.dma_copy(dst=rows_of(dx, loop, first, count, width), src=result)

    nl.fori_loop(*share(loops), one_loop)
    _add_rows(dscale[program : program + 1, :], sums)
    return dx, dscale


def _row_gradients(rows: Any, grads: Any, root: Any, scales: Any, sums: Any) -> Any:
    """Returns a tile of dx, and adds the tile's part of dscale to `sums`."""
    count, width = rows.shape
    scaled, product = (nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    factor = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(dst=product, data=rows, op0=nl.multiply, operand0=root, op1=nl.multiply, operand1=grads)
    nisa.tensor_tensor(dst=sums, data1=sums, data2=product, op=nl.add)
    nisa.tensor_tensor(dst=product, data1=product, data2=scales, op=nl.multiply)
    # -mean(g * x * r) * r, by which x * r is added to g.
    nisa.tensor_reduce(dst=factor, op=nl.add, data=product, axis=1, negate=True)
    nisa.tensor_scalar(dst=factor, data=factor, op0=nl.multiply, operand0=1.0 / width, op1=nl.multiply, operand1=root)
    nisa.tensor_tensor(dst=scaled, data1=grads, data2=scales, op=nl.multiply)
    nisa.scalar_tensor_tensor(dst=scaled, data=rows, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=scaled)
    result = nl.ndarray((count, width), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=scaled, op0=nl.multiply, operand0=root)
    return result


def _add_rows(target: Any, sums: Any) -> None:
    """Writes the sum over partitions to a row of HBM: a matmul with ones adds up what lies on partitions."""
    count, width = sums.shape
    ones = filled((count, 1), 1.0)
    for start in range(0, width, _COLUMNS):
        size = min(_COLUMNS, width - start)
        added = nl.ndarray((1, size), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=added, stationary=ones, moving=sums[:, start : start + size], accumulate=False)
        row = nl.ndarray((1, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=row, src=added)
        nisa.dma_copy(dst=target[:, start : start + size], src=row)
